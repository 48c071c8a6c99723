"""Collections of a user's documents: read in children, cut by structure, found by words and by meaning."""
