"""Speculative decoding: drafters with weights of their own, and how far they draft."""
