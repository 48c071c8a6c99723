"""Converts messages to a prompt, and generated text back to messages."""
