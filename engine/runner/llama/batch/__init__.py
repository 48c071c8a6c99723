"""Computation of a step: requests, their order, sampling, embeddings."""
