"""N-gram drafts: the next tokens proposed from the text itself, where that pays.

A draft is what followed the last time the same few tokens stood in the prompt or the answer. The model then checks
the whole draft in one step; sampling goes on as long as it samples what was drafted, so the text is the one that it
would have been without.
"""

from dataclasses import dataclass, field
from typing import Final

from engine.runner.generation.draft_length import Acceptance
from engine.runner.load_limits import MAX_DRAFT

# Tokens that must match before what followed them is proposed. Shorter keys match everywhere and predict badly.
KEY_TOKENS: Final = 4
# With the newest token four, then eight, then sixteen rows: processors take rows by four (pacing.py).
FIRST_LENGTH: Final = 3
# From so many matching tokens on a copy is under way, and it is judged apart from chance matches.
LONG_MATCH: Final = 12
# How often drafts are thought right at first: behind a chance match, and within a copy.
PRIORS: Final = (0.5, 0.9)
# Rejected drafts in a row after which drafting pauses for as many tokens as PAUSE_TOKENS, doubled each time.
PATIENCE: Final = 2
PAUSE_TOKENS: Final = 16
LONGEST_PAUSE: Final = 512


@dataclass
class NgramDrafter:
    """Proposals for one sequence. `observe` its tokens, `propose`, then `record` what became of the proposal."""

    length: int = FIRST_LENGTH
    _tokens: list[int] = field(default_factory=list)
    _after: dict[tuple[int, ...], int] = field(default_factory=dict)
    _cursor: int = 0
    _matched: int = 0
    _failures: int = 0
    _pause: int = PAUSE_TOKENS
    _silent_until: int = 0
    _by_match: list[Acceptance] = field(default_factory=lambda: [Acceptance(prior) for prior in PRIORS])

    @property
    def acceptance(self) -> Acceptance:
        """How often drafts like the present one are right."""
        return self._by_match[self._matched >= LONG_MATCH]

    def observe(self, tokens: list[int]) -> None:
        """Tokens that are now part of the sequence."""
        for token in tokens:
            end = len(self._tokens)
            key = tuple(self._tokens[end - KEY_TOKENS :]) if end >= KEY_TOKENS else None
            if self._matched and self._tokens[self._cursor] == token:
                self._cursor += 1
                self._matched += 1
            else:
                self._matched = 0
            if key is not None:
                self._after[key] = end
            self._tokens.append(token)

    def propose(self, room: int) -> list[int]:
        """Up to `room` tokens that may follow; empty when there is no draft or drafting does not pay now.

        A copy that is under way continues where it is, even if the last few tokens stood elsewhere since.
        """
        if room <= 0 or len(self._tokens) < max(self._silent_until, KEY_TOKENS):
            return []
        if not self._matched:
            start = self._after.get(tuple(self._tokens[-KEY_TOKENS:]))
            if start is None:
                return []
            self._cursor, self._matched = start, KEY_TOKENS
        return self._tokens[self._cursor : self._cursor + min(self.length, room)]

    def record(self, proposed: int, accepted: int) -> None:
        """Learn from a checked draft before its tokens are observed: longer after success, rarer after failures."""
        self.acceptance.note(proposed, accepted)
        if accepted == proposed:
            self.length = min(2 * self.length + 1, MAX_DRAFT - 1)
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
