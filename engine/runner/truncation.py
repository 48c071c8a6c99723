"""Inputs of embedding models that are longer than their context."""

from collections.abc import Set as AbstractSet


def shortened(tokens: list[int], limit: int, closing: AbstractSet[int]) -> list[int]:
    """The first `limit` tokens; the last one stays where it is one of `closing`, which many models read from."""
    if tokens[-1] in closing:
        return [*tokens[: limit - 1], tokens[-1]]
    return tokens[:limit]
