"""Rounding that knows the inputs: ggml's own block scales, integers chosen again against second moments."""
