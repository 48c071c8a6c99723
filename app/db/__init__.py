"""Database of conversations and preferences."""
