"""Model files: reading, converting and choosing a type for every tensor."""
