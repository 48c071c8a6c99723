"""Anthropic's protocol: messages and token counts."""
