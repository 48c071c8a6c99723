"""Dictation and reading aloud, without Qt."""
