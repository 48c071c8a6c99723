"""Builds kernel packs: one ggml backend for one platform, from the locked source of llama.cpp."""
