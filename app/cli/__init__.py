"""The terminal: one file per command group."""
