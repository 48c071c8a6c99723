"""Manages the loaded models: loading, use and eviction."""
