"""The only door of the quantizer to libggml and libllama; to be used in child processes that may die."""
