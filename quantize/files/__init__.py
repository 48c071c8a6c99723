"""Model files: read as untrusted input, written completely or not at all."""
