"""Speculative decoding with draft models and MTP heads, and the choice of draft lengths."""
