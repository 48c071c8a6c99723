"""Markdown rendering of streamed model output. It never loads resources or runs anything."""
