"""Answers of other programs' protocols, as far as their clients rely on them."""
