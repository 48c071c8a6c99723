"""Limits reasoning: at the limit the family's own end marker is forced, and the response continues after it."""

from collections.abc import Sequence

from engine.core.types import ReasoningBudget
from engine.runner.generation.vocabulary import Vocabulary


class ReasoningLimit:
    """Tracks one response. `forced` is called before each token is sampled."""

    def __init__(self, budget: ReasoningBudget, vocabulary: Vocabulary) -> None:
        self._pieces = vocabulary.pieces
        self._start, self._end = budget.start.encode(), budget.end.encode()
        self._inside = budget.is_open
        self._left = budget.tokens
        self._seen = b""
        self._num_seen = 0
        self._close = vocabulary.tokenize(budget.close, add_special=False, parse_special=True)
        self._forced: list[int] = []

    def forced(self, generated: Sequence[int], count: int) -> int | None:
        """Return the token that must come next, or None. `generated` ends with the response's `count` tokens."""
        for token in generated[len(generated) - (count - self._num_seen) :] if count > self._num_seen else ():
            self._follow(token)
        self._num_seen = count
        if not self._forced and self._inside and self._left <= 0:
            self._forced = list(self._close)
        return self._forced[0] if self._forced else None

    def _follow(self, token: int) -> None:
        if self._forced and token == self._forced[0]:
            del self._forced[0]
        self._left -= self._inside
        awaited = self._end if self._inside else self._start
        self._seen += self._pieces[token]
        at = self._seen.find(awaited)
        if at >= 0:
            self._inside = not self._inside
            self._seen = self._seen[at + len(awaited) :]
        else:
            self._seen = self._seen[-len(awaited) :]
