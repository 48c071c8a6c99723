"""Samples one token for one sequence from a row of logits, with penalties, constraint and log probabilities."""

from typing import Any

from engine.core.types import TokenLogprob
from engine.runner.generation.reasoning import ReasoningLimit
from engine.runner.generation.sampler import NotFinite, token_logprob
from engine.runner.generation.sequence import Sequence
from engine.runner.generation.vocabulary import Vocabulary


class SamplingFailed(Exception):
    """No token can be sampled for this request."""


class ConstraintFailed(SamplingFailed):
    """The request's grammar cannot continue."""


def sample(sequence: Sequence, row: Any, vocabulary: Vocabulary) -> tuple[int, TokenLogprob | None]:
    """Return the next token, and its log probability if requested. `row` (n_vocab,) is changed in place.

    The unconstrained token is tried first: in most steps it is allowed, and no mask over the vocabulary is needed.

    Raises: ConstraintFailed; SamplingFailed: the logits are not finite.
    """
    wanted = sequence.request.logprobs
    raw = row.copy() if wanted is not None else None
    forced = _forced(sequence, vocabulary)
    if forced is not None:
        return forced, None if raw is None else token_logprob(raw, forced, wanted or 0, vocabulary.pieces)
    if sequence.noise is not None:
        sequence.noise.before(row)
    try:
        sequence.sampler.adjust(row)
        if forbidden := _forbidden(sequence, vocabulary):
            row[forbidden] = float("-inf")
        token = sequence.sampler.sample(row)
        constraint = sequence.constraint
        if constraint is not None and not constraint.allows(token):
            constraint.mask(row)
            if constraint.error:
                raise ConstraintFailed(constraint.error)
            token = sequence.sampler.sample(row)
    except NotFinite as error:
        raise SamplingFailed(f"The model's output is not a number ({error}).") from error
    if sequence.noise is not None:
        sequence.noise.sampled(float(row[token]))
    return token, None if raw is None else token_logprob(raw, token, wanted or 0, vocabulary.pieces)


def _forced(sequence: Sequence, vocabulary: Vocabulary) -> int | None:
    """Return the next token of the closing marker if reasoning has reached its limit, else None."""
    budget = sequence.request.reasoning
    if budget is None:
        return None
    if sequence.thinking is None:
        sequence.thinking = ReasoningLimit(budget, vocabulary)
    return sequence.thinking.forced(sequence.tokens, sequence.n_generated)


def _forbidden(sequence: Sequence, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that would end the response too early."""
    request = sequence.request
    early = sequence.n_generated < request.min_tokens
    forbidden = list(vocabulary.ends) if early or request.ignore_eos else []
    return [*forbidden, *request.stop_token_ids] if early else forbidden
