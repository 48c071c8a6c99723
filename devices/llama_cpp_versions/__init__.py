"""Versions of llama-cpp-python beside the one that belongs to this program."""
