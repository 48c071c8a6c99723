"""Converts Hugging Face folders to GGUF without torch; one module per architecture family."""
