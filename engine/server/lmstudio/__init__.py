"""LM Studio's list of models."""
