"""What drafters with weights of their own share: token by token from logits, until one is doubtful."""

import abc
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.native.batch import Logits

# A token that is itself given less than this ends the draft: it is wrong more often than not.
MIN_PROBABILITY: Final = 0.3
# Weight of the newest draft in what drafting a token costs.
NEWEST: Final = 0.2


class ModelDrafter(abc.ABC):
    """A draft model, or a model's own head. `draft_token_s` is what drafting a token costs.

    Tokens from `n_vocab` on are not the target's.
    """

    def __init__(self, logits: Logits, n_vocab: int) -> None:
        self._logits = logits
        self._n_vocab = n_vocab
        self.draft_token_s = 0.0

    @abc.abstractmethod
    def propose(
        self, owner: int, tokens: list[int], length: int, key: Key = (), *, forced: bool = False
    ) -> list[int]:
        """Up to `length` tokens that may follow the `tokens` of a request; empty while it cannot tell.

        What was computed for a request of another `key` is not used. A token that is probably wrong ends the draft,
        unless it is `forced`.
        """

    @abc.abstractmethod
    def resize(self, n_ctx: int) -> None:
        """The target's context has so many tokens now. Raises: LoadFailed: there is no memory for as many here."""

    def _draft(self, length: int, read: Callable[[int], bool], *, forced: bool) -> list[int]:
        """A draft from the logits there are; `read` decodes one for the logits of the next, or says no."""
        found: list[int] = []
        started = time.monotonic()
        while True:
            row = self._logits.rows(1)[0]
            token = int(row.argmax())
            if token >= self._n_vocab:
                break
            if not forced and not MIN_PROBABILITY * float(np.exp(row - row[token]).sum()) <= 1:
                break
            found.append(token)
            if len(found) == length or not read(token):
                break
        seconds = (time.monotonic() - started) / max(len(found), 1)
        self.draft_token_s = (
            seconds if not self.draft_token_s else (1 - NEWEST) * self.draft_token_s + NEWEST * seconds
        )
        return found
