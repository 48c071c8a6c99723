"""The quantizer's only interface to libggml and libllama. Use it in child processes, because it may crash."""
