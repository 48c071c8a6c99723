"""How a text is kept from costing more than it can be worth: words that every runner's vocabulary shares."""

from typing import Final

# Nowhere to cut: a longer part is first counted in slices, so that one that cannot fit is not tokenized whole.
SLICE_BYTES: Final = 64 << 10
# A slice ends in the middle of a word, which may cost some tokens.
SLICE_LOSS: Final = 16


class TooManyTokens(Exception):
    """The text has more tokens than asked for; `at_least` so many."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"at least {at_least} tokens")
        self.at_least = at_least


class Stopped(Exception):
    """Nobody waits for these tokens any more."""
