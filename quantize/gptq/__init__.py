"""GPTQ rounding: keeps ggml's block scales and chooses the integers with the Hessian."""
