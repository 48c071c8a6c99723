"""Limits of texts: the cost of tokenizing one, shared by all vocabularies, and the length of one to embed."""

from collections.abc import Set as AbstractSet
from typing import Final

# Counting tokens is useful beyond the context too; a text of this size has about a million.
TOKENIZE_CHARS: Final = 4 << 20
# A part without a split point that is longer than this is first counted in slices, to reject it before tokenizing
# it whole.
SLICE_BYTES: Final = 64 << 10
# A slice ends in the middle of a word, which may add some tokens.
SLICE_LOSS: Final = 16


class TooManyTokens(Exception):
    """The text has more tokens than allowed: at least `at_least`."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"at least {at_least} tokens")
        self.at_least = at_least


class Stopped(Exception):
    """The caller cancelled."""


def shortened(tokens: list[int], limit: int, closing: AbstractSet[int]) -> list[int]:
    """Return the first `limit` tokens, but keep the last one if it is in `closing`: many models read its output."""
    if tokens[-1] in closing:
        return [*tokens[: limit - 1], tokens[-1]]
    return tokens[:limit]
