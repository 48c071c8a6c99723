"""Terminal commands, one module per command group."""
