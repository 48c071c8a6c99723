"""Markdown from a model, shown as it streams: nothing in it can load a resource or run."""
