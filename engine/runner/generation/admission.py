"""Checks a request before a model sees it."""

from engine.core.types import GenerationRequest
from engine.runner.protocol import Fault


def answer_limit(request: GenerationRequest, num_tokens: int, n_ctx: int) -> int:
    """Return the maximum length of prompt plus response, in tokens, for a prompt of `num_tokens`."""
    room = n_ctx - num_tokens if not request.context_shift else request.max_tokens or 0
    return num_tokens + (room if request.max_tokens is None else min(request.max_tokens, room))


def context_exceeded(request_id: int, num_tokens: int, n_ctx: int) -> Fault | None:
    """Return a Fault if a prompt leaves no space in a context of `n_ctx` tokens, else None."""
    if num_tokens < n_ctx:
        return None
    counts: dict[str, int | float | str | None] = {"prompt_tokens": num_tokens, "context_tokens": n_ctx}
    return Fault(id=request_id, code="context_length_exceeded", message="", facts=counts)


def problem(request: GenerationRequest, tokens: list[int], n_vocab: int) -> tuple[str, str] | None:
    """Return the field with invalid token ids and the reason, or None.

    Ids below 0 stand for images; only a prompt that the runner itself tokenized has them.
    """
    if not tokens:
        return "prompt", "The prompt is empty."
    if (isinstance(request.prompt, list) and min(tokens) < 0) or max(tokens) >= n_vocab:
        return "prompt", f"Token ids must be between 0 and {n_vocab - 1}."
    for field, ids in (("logit_bias", request.sampling.logit_bias), ("stop_token_ids", request.stop_token_ids)):
        unknown = [t for t in ids if not 0 <= t < n_vocab]
        if unknown:
            return field, f"Token id {unknown[0]} is not in this model's vocabulary of {n_vocab}."
    return None
