"""One quantization from end to end, and what its children do."""
