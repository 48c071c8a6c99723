"""LM Studio's model list."""
