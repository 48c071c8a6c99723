"""Base class of drafters with weights: drafts token by token from logits, until one is doubtful."""

import abc
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.native.batch import Logits

# A token with a lower probability ends the draft: it would be wrong more often than not.
MIN_PROBABILITY: Final = 0.3
# Weight of the newest draft in the moving average of the cost per token.
NEWEST: Final = 0.2


class ModelDrafter(abc.ABC):
    """A draft model or an MTP head. `draft_token_s` is the cost of drafting a token.

    Tokens from `n_vocab` on do not exist in the target.
    """

    def __init__(self, logits: Logits, n_vocab: int) -> None:
        self._logits = logits
        self._n_vocab = n_vocab
        self.draft_token_s = 0.0

    @abc.abstractmethod
    def propose(
        self, owner: int, tokens: list[int], length: int, key: Key = (), *, forced: bool = False
    ) -> list[int]:
        """Return up to `length` draft tokens after a request's `tokens`; empty if not possible yet.

        A state computed for a request of another `key` is not used. A token that is probably wrong ends the draft,
        unless it is `forced`.
        """

    @abc.abstractmethod
    def resize(self, n_ctx: int) -> None:
        """Follow a resize of the target's context to `n_ctx`. Raises: LoadFailed: there is not enough memory."""

    def _draft(self, length: int, read: Callable[[int], bool], *, forced: bool) -> list[int]:
        """Return a draft from the current logits; `read` decodes a token for the next logits, or returns False."""
        draft: list[int] = []
        started = time.monotonic()
        while True:
            row = self._logits.rows(1)[0]
            token = int(row.argmax())
            if token >= self._n_vocab:
                break
            if not forced and not MIN_PROBABILITY * float(np.exp(row - row[token]).sum()) <= 1:
                break
            draft.append(token)
            if len(draft) == length or not read(token):
                break
        seconds = (time.monotonic() - started) / max(len(draft), 1)
        self.draft_token_s = (
            seconds if not self.draft_token_s else (1 - NEWEST) * self.draft_token_s + NEWEST * seconds
        )
        return draft
