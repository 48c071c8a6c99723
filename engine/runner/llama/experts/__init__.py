"""Experts of a mixture larger than memory: the used ones kept, the others read when a token asks for them."""
