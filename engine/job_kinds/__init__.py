"""The kinds of background jobs and their work."""
