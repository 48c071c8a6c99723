"""Shared by all samplers: penalties, biases, greedy choice, log probabilities of a row of logits."""

import abc
import math
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.core.types import SamplingParams, TokenLogprob

# The sampler applies penalties itself, not as a llama.cpp stage. The order is llama.cpp's default.
PENALTIES: Final = "penalties"
DEFAULT_ORDER: Final = (
    PENALTIES,
    "dry",
    "top_n_sigma",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)


class NotFinite(ArithmeticError):
    """The model produced NaN or infinite logits."""


class Sampler(abc.ABC):
    """The sampling state of one sequence. `accept` every token, sampled or forced.

    Greedy sampling is an argmax of the row. Each runner implements `_choose` for all other parameters.
    """

    def __init__(self, params: SamplingParams, prompt: list[int]) -> None:
        self._params = params
        self.seed = params.seed if params.seed is not None else int.from_bytes(os.urandom(4), "little")
        self._recent: list[int] = prompt[-params.repeat_last_n :] if params.repeat_last_n > 0 else []
        self._counts: Counter[int] = Counter()
        self._bias_ids = np.fromiter(params.logit_bias, np.int64, len(params.logit_bias))
        self._bias = np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias))
        self.greedy = params.temperature <= 0
        changes = params.repeat_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        self._penalizes = changes and (params.order is None or PENALTIES in params.order or self.greedy)

    def accept(self, token: int) -> None:
        """Record a token that is now part of the sequence."""
        p = self._params
        if p.repeat_last_n > 0:
            self._recent.append(token)
            if len(self._recent) > p.repeat_last_n:
                del self._recent[0]
        if p.presence_penalty or p.frequency_penalty:
            self._counts[token] += 1

    def adjust(self, row: Any) -> None:
        """Apply penalties and biases to `row` (n_vocab,) float32, in place.

        The repetition penalty uses the last tokens of prompt and response. Presence and frequency penalties use
        only the response, as their authors define them.
        """
        if self._penalizes:
            self._penalize(row)
        if len(self._bias_ids):
            row[self._bias_ids] += self._bias

    def _penalize(self, row: Any) -> None:
        p = self._params
        if p.repeat_penalty != 1 and self._recent:
            ids = np.unique(np.asarray(self._recent, np.int64))
            values = row[ids]
            row[ids] = np.where(values > 0, values / p.repeat_penalty, values * p.repeat_penalty)
        if self._counts:
            ids = np.fromiter(self._counts, np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            row[ids] -= p.presence_penalty + p.frequency_penalty * counts

    def sample(self, row: Any) -> int:
        """Return the next token from an adjusted row.

        Raises: NotFinite: the best logit is NaN or infinite.
        """
        best = int(row.argmax())
        top = float(row[best])
        if not math.isfinite(top):
            raise NotFinite(f"logit of token {best} is {top}")
        return self._choose(row, best)

    @abc.abstractmethod
    def _choose(self, row: Any, best: int) -> int:
        """Return the token for an adjusted row whose most likely token is `best`. Raises: NotFinite."""

    def close(self) -> None:  # noqa: B027 - most have no native memory
        """Free native memory."""


def token_logprob(row: Any, token: int, n_top: int, pieces: Sequence[bytes]) -> TokenLogprob:
    """Log probability of `token` in an unadjusted row, with the `n_top` most probable tokens."""
    top = float(row.max())
    log_sum = top + math.log(float(np.exp(row - top).sum()))
    best: tuple[tuple[int, bytes, float], ...] = ()
    if n_top > 0:
        ids = np.argpartition(-row, n_top - 1)[:n_top]
        ids = ids[np.argsort(-row[ids], kind="stable")]
        best = tuple((int(i), pieces[int(i)], float(row[i]) - log_sum) for i in ids)
    return TokenLogprob(token, pieces[token], float(row[token]) - log_sum, best)
