"""Which tokens are computed already: cells, checkpoints, prefixes in memory and on disk."""
