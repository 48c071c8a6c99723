"""Joules: who drew them, and how power is kept under a cap or a budget."""
