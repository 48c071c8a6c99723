"""vLLM as an engine of this computer: found, described by what it will take, and kept to its server's life."""
