"""The steps of a whole quantization job, and the tasks of its child processes."""
