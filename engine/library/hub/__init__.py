"""A Hugging Face hub (or a mirror that speaks its API), through huggingface-hub."""
