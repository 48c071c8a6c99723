"""One token for one sequence from one row of logits: penalties, sampling, constraint, log probabilities."""

from typing import Any

from engine.runner.llama.sampler import NotFinite, token_logprob
from engine.runner.llama.sequence import Sequence
from engine.runner.llama.vocabulary import Vocabulary
from engine.types import TokenLogprob


class DrawFailed(Exception):
    """No token can be drawn for this request; `code` is told to the client."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def draw(sequence: Sequence, row: Any, vocabulary: Vocabulary) -> tuple[int, TokenLogprob | None]:
    """The next token, and its log probability if the request wants it. `row` (n_vocab,) is changed in place.

    The unconstrained token is tried first: in most steps it is allowed, and no mask over the vocabulary is needed.

    Raises: DrawFailed.
    """
    wanted = sequence.request.logprobs
    raw = row.copy() if wanted is not None else None
    try:
        sequence.sampler.adjust(row)
        if sequence.request.ignore_eos:
            row[list(vocabulary.ends)] = float("-inf")
        token = sequence.sampler.draw(row)
        constraint = sequence.constraint
        if constraint is not None and not constraint.allows(token):
            constraint.mask(row)
            if constraint.error:
                raise DrawFailed("constraint_failed", constraint.error)
            token = sequence.sampler.draw(row)
    except NotFinite as error:
        raise DrawFailed("not_finite", f"The model's output is not a number ({error}).") from error
    return token, None if raw is None else token_logprob(raw, token, wanted or 0, vocabulary.pieces)
