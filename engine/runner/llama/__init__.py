"""The runner that serves one model through llama.cpp."""
