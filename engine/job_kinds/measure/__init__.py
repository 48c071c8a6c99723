"""Measuring as a job or a command: bench, autotune, prices of types."""
