"""Rounding that knows the inputs: ggml's own block scales, integers chosen anew against second moments."""
