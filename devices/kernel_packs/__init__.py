"""Kernel packs: ggml plugins installed next to the shipped libraries, checked, and rolled back on failure."""
