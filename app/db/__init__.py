"""Conversations and preferences on disk."""
