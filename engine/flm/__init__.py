"""FastFlowLM, an NPU server of its own: whether it is here and what it has."""
