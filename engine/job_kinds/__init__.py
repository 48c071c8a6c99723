"""The kinds of background jobs, and what each of them does."""
