"""Truncates inputs of embedding models that are longer than the context."""

from collections.abc import Set as AbstractSet


def shortened(tokens: list[int], limit: int, closing: AbstractSet[int]) -> list[int]:
    """Return the first `limit` tokens, but keep the last one if it is in `closing`: many models read its output."""
    if tokens[-1] in closing:
        return [*tokens[: limit - 1], tokens[-1]]
    return tokens[:limit]
