"""Model files: reading, converting and choosing a precision for every tensor."""
