"""A bound on reasoning: when it is reached the family's own mark is written, and the answer continues behind it."""

from collections.abc import Sequence

from engine.core.types import ReasoningBudget
from engine.runner.generation.vocabulary import Vocabulary


class ReasoningLimit:
    """Follows one answer. `forced` is asked before each token is sampled."""

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
        """The token that must come next, if any. `generated` ends with the `count` tokens of the answer."""
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
