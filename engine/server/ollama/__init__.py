"""Ollama's protocol: /api/chat, generate, embed and the management of models."""
