"""Kernel packs: ggml backend plugins that are installed beside the shipped libraries, checked, and taken back."""
