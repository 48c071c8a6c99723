"""Pure readers: each asks a Host and returns facts, never raising for what is missing or garbled."""
