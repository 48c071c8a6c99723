"""Finds usable kernels: tests every backend library in its own child process with a time limit."""
