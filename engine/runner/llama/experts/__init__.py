"""Streams the experts of an MoE model larger than memory: used ones are cached, others read on demand."""
