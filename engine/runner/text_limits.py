"""Limits of texts: the cost of tokenizing one, shared by all vocabularies, and which texts can be embedded."""

from collections.abc import Set as AbstractSet
from typing import Final

from engine.runner.protocol import Embed, Fault

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


def invalid(job_id: int, message: str, param: str) -> Fault:
    """Return the fault of a request that can never run."""
    return Fault(id=job_id, code="invalid_request", message=message, param=param)


def embed_fault(message: Embed, *, ranks: bool) -> Fault | None:
    """Return why a model cannot run the message; `ranks`: it has a ranking head and gives no embeddings."""
    if message.query is not None and not ranks:
        return invalid(message.id, "This model has no ranking head; load a reranker.", "model")
    if message.query is None and ranks:
        return invalid(message.id, "This model ranks documents and gives no embeddings.", "model")
    return None if message.inputs else invalid(message.id, "There is nothing to embed.", "input")


def input_fault(job_id: int, index: int, tokens: list[int], limit: int, num_tokens: int) -> Fault | None:
    """Return why an input cannot be embedded; None if it has 1 to `limit` tokens, all below `num_tokens`."""
    param = f"input[{index}]"
    if not tokens:
        return invalid(job_id, f"{param} is empty.", param)
    if min(tokens) < 0 or max(tokens) >= num_tokens:
        return invalid(job_id, f"Token ids must be between 0 and {num_tokens - 1}.", param)
    return too_long(job_id, index, len(tokens), limit) if len(tokens) > limit else None


def too_long(job_id: int, index: int, count: int, limit: int) -> Fault:
    """Return the fault of an input with `count` tokens for a context of `limit`."""
    facts: dict[str, int | float | str | None] = {"prompt_tokens": count, "context_tokens": limit}
    return Fault(id=job_id, code="context_length_exceeded", message="", param=f"input[{index}]", facts=facts)
