"""The KV cache: cells, checkpoints, and prefixes in memory and on disk."""
