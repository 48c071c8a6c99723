"""Access to a Hugging Face hub, or a mirror with the same API, through huggingface-hub."""
