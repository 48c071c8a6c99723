"""Which kernels load here: every backend library tried in a time-limited child process of its own."""
