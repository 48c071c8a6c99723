"""The loaded models: which are in memory, who uses them, which one gives way."""
