"""Chats of other programs, read from their exports."""
