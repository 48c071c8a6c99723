"""Guessing the next tokens from the text itself, and knowing when that does not pay.

A draft is what followed the last time the same few tokens stood in the prompt or the answer. The model then checks
the whole draft in one step; sampling goes on as long as it draws what was guessed, so the text is the one that it
would have been without.
"""

from dataclasses import dataclass, field
from typing import Final

from engine.runner.llama.model import MAX_DRAFT

# Tokens that must match before what followed them is proposed. Shorter keys match everywhere and guess badly.
KEY_TOKENS: Final = 4
FIRST_LENGTH: Final = 4
# Rejected drafts in a row after which drafting pauses for as many tokens as PAUSE_TOKENS, doubled each time.
PATIENCE: Final = 2
PAUSE_TOKENS: Final = 16
LONGEST_PAUSE: Final = 512


@dataclass
class NgramDrafter:
    """Proposals for one sequence. `observe` its tokens, `propose`, then `judge` what became of the proposal."""

    length: int = FIRST_LENGTH
    proposed: int = 0
    accepted: int = 0
    _tokens: list[int] = field(default_factory=list)
    _after: dict[tuple[int, ...], int] = field(default_factory=dict)
    _failures: int = 0
    _pause: int = PAUSE_TOKENS
    _silent_until: int = 0

    @property
    def share(self) -> float:
        """Share of guesses that were right, hopeful at first."""
        return (self.accepted + 1) / (self.proposed + 1)

    def observe(self, tokens: list[int]) -> None:
        """Tokens that are now part of the sequence."""
        for token in tokens:
            end = len(self._tokens)
            if end >= KEY_TOKENS:
                self._after[tuple(self._tokens[end - KEY_TOKENS : end])] = end
            self._tokens.append(token)

    def propose(self, room: int) -> list[int]:
        """Up to `room` tokens that may follow; empty when there is no guess or guessing does not pay now."""
        if room <= 0 or len(self._tokens) < max(self._silent_until, KEY_TOKENS):
            return []
        start = self._after.get(tuple(self._tokens[-KEY_TOKENS:]))
        if start is None:
            return []
        return self._tokens[start : start + min(self.length, room)]

    def judge(self, proposed: int, accepted: int) -> None:
        """Learn from a checked draft: longer after a success, shorter and rarer after failures."""
        self.proposed += proposed
        self.accepted += accepted
        if accepted == proposed:
            self.length = min(2 * self.length, MAX_DRAFT)
            self._failures, self._pause = 0, PAUSE_TOKENS
            return
        self.length = max(FIRST_LENGTH, accepted + 1)
        if 2 * accepted >= proposed:
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= PATIENCE:
            self._failures = 0
            self._silent_until = len(self._tokens) + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)


@dataclass
class StepCost:
    """What a step of a given width costs, learned as it goes. Says whether a wider step would pay."""

    _seconds: dict[int, float] = field(default_factory=dict)

    def note(self, rows: int, seconds: float) -> None:
        """A step of `rows` took this long."""
        before = self._seconds.get(rows)
        self._seconds[rows] = seconds if before is None else 0.8 * before + 0.2 * seconds

    def pays(self, rows: int, extra: int, expected: float) -> bool:
        """Adding `extra` rows to a step of `rows` pays if `expected` are accepted; unknown widths are tried."""
        narrow, wide = self._seconds.get(rows), self._seconds.get(rows + extra)
        if narrow is None or wide is None:
            return True
        return (rows + expected) / rows * narrow > wide
