"""Guessing ahead: who guesses, how far, and whether it pays."""
