"""FastFlowLM as a runner: its own server on loopback, spoken to in its own protocol."""
