"""Answers that lead nowhere: the same passage again and again, or noise."""

import math
import re
from collections import deque
from typing import Any, Final

import numpy as np

from engine.core.types import Runaway

# A word, or a piece of a long one; a letter of scripts that put no spaces between words; lines and long blanks.
# Said as what they are not: a range that ends with Unicode takes ten times as long to compile.
_CHUNK: Final = re.compile(r"\n{40}|\n|[^\x00-\u0dff]|[^\s\u0e00-\U0010ffff]{1,24}|[^\S\n]{80}")
_BLOCK: Final = 24
_MARK: Final = re.compile(r"[-*\u2022+>#]+|\(?\d{1,4}[.):]+")
_PLAIN: Final = re.compile(r"[^\W\d_]+[.,;:!?]*")
_ENOUGH: Final = 64
_UNBROKEN: Final = 240
# All measured on tests/support/long_texts.py and on greedy answers of SmolLM2-135M: docs/log.md, "Runaway answers".
_WINDOW_CHARS: Final = 1200
_FRACTION: Final = 0.65
_FIND: Final = 4
_MISSES: Final = 4
_OF: Final = 8
_NEWS_CHARS: Final = 150
_CHANGED: Final = 4
_HISTORY: Final = 8000
_PASSAGE_CHARS: Final = 200
_NOISE_NATS: Final = 5.0
_SAMPLES: Final = 64
_EVERY: Final = 4


class RepeatWatch:
    """Follows a text and finds out that it goes round in circles.

    Every word is compared with the one at the same place of the passage that came before. What stands there for the
    third time or more speaks for a loop. A changed word speaks against it, a changed number or name much more: so
    tables, lists, code and songs continue. Counters before the items of a list do not count.
    """

    def __init__(self) -> None:
        self.found: Runaway | None = None
        self._unread = ""
        self._words: list[str] = []
        self._rounds: list[int] = []
        self._last_seen: dict[tuple[str, ...], int] = {}
        self._source = -1
        self._misses: deque[bool] = deque(maxlen=_OF)
        self._window: deque[tuple[int, int]] = deque()
        self._chars = self._repeated = 0
        self._line_begins = True

    def feed(self, text: str) -> None:
        """More of the text, in pieces of any length; `found` tells when it has been a loop for some time."""
        self._unread += text
        if len(self._unread) < _ENOUGH or self.found is not None:
            return
        cut = max(self._unread.rfind(" "), self._unread.rfind("\n")) + 1
        if not cut:
            if len(self._unread) < _UNBROKEN:
                return
            cut = len(self._unread) // _BLOCK * _BLOCK
        complete, self._unread = self._unread[:cut], self._unread[cut:]
        for word in _CHUNK.findall(complete):
            if word == "\n":
                self._line_begins = True
                continue
            if not (self._line_begins and _MARK.fullmatch(word)):
                self._take(word)
            self._line_begins = False

    def _take(self, word: str) -> None:
        at = len(self._words)
        self._words.append(word)
        rounds = value = 0
        if self._source >= 0:
            same = self._words[self._source] == word
            before = self._rounds[self._source]
            rounds = before + same
            if same:
                value = len(word) + 1 if rounds > 1 else 0
            else:
                plain = _PLAIN.fullmatch(word) and not word[0].isupper()
                value = -_CHANGED * len(word) if plain else -_NEWS_CHARS
            self._misses.append(not same)
            self._source += 1
            if sum(self._misses) >= _MISSES:
                self._source = -1
        self._rounds.append(rounds)
        if at + 1 >= _FIND:
            last = tuple(self._words[-_FIND:])
            if self._source < 0:
                self._source = self._last_seen.get(last, -2) + 1
                self._misses.clear()
            self._last_seen[last] = at
        self._weigh(len(word) + 1, value)
        if len(self._words) >= 2 * _HISTORY:
            self._forget()

    def _weigh(self, chars: int, repeated: int) -> None:
        self._window.append((chars, repeated))
        self._chars += chars
        self._repeated += repeated
        while self._chars - self._window[0][0] >= _WINDOW_CHARS:
            old_chars, old_repeated = self._window.popleft()
            self._chars -= old_chars
            self._repeated -= old_repeated
        if self._chars >= _WINDOW_CHARS and self._repeated >= _FRACTION * self._chars and self._source >= 0:
            period = len(self._words) - self._source
            passage = " ".join(self._words[-period:])[:_PASSAGE_CHARS]
            self.found = Runaway(kind="loop", passage=passage, times=max(self._rounds[-period:]) + 1)

    def _forget(self) -> None:
        """Keep the newer half of a very long text."""
        del self._words[:_HISTORY], self._rounds[:_HISTORY]
        self._last_seen = {key: at - _HISTORY for key, at in self._last_seen.items() if at >= _HISTORY}
        self._source = max(self._source - _HISTORY, -1)


class NoiseWatch:
    """Follows how unlikely the model itself finds what is sampled from it.

    Text that a model writes in earnest costs 1 to 3 nats a token, digits and hashes up to 4.2; where the sampling
    cut nothing off and the text fell apart, 6 and more. Every fourth token is looked at, which costs less than 1 %
    of a step.
    """

    def __init__(self) -> None:
        self.found: Runaway | None = None
        self._count = 0
        self._log_sum: float | None = None
        self._nats: deque[float] = deque(maxlen=_SAMPLES)

    def before(self, row: Any) -> None:
        """The logits (n_vocab,) that the next token is sampled from, before anything changes them."""
        self._count += 1
        self._log_sum = None
        if self._count % _EVERY == 0:
            top = float(row.max())
            self._log_sum = top + math.log(float(np.exp(row - top).sum()))

    def sampled(self, logit: float) -> None:
        """The logit of the token that was sampled."""
        if self._log_sum is None:
            return
        self._nats.append(max(self._log_sum - logit, 0.0))
        if len(self._nats) == _SAMPLES and self.found is None:
            mean = sum(self._nats) / _SAMPLES
            if mean >= _NOISE_NATS:
                self.found = Runaway(kind="noise", nats=round(mean, 2))
