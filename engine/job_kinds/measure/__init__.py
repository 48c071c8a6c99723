"""Measuring as a job or a command: bench, autotune, decoding times of types."""
