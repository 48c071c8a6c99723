"""Benchmarks of models on this machine: real models, and dummy-weight models of ones that are not downloaded."""
