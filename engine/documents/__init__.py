"""Collections of a user's documents: read in child processes, chunked by structure, found by word and meaning."""
