"""Hugging Face folders to GGUF, one file an architecture family, without torch."""
