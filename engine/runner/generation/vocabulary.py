"""What a runner has to know of its model's tokens."""

import abc
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet


class Vocabulary(abc.ABC):
    """Tokens to bytes and back; safe from any thread.

    `pieces[token]` are the bytes of each of the `size` tokens with control tokens spelled out; `control` holds the
    tokens that are not shown by default; `ends` those that end a generation. `spells`: the tokens of a text spell
    it, so that its length bounds their number from below.
    """

    size: int
    pieces: Sequence[bytes]
    control: AbstractSet[int]
    ends: AbstractSet[int]
    spells: bool

    @abc.abstractmethod
    def tokenize(
        self,
        text: str,
        *,
        add_special: bool,
        parse_special: bool,
        limit: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[int]:
        """Token ids of `text`; `add_special` adds what the model wants at the start (BOS).

        Raises: TooManyTokens: there are more than `limit`, told before all of them are made; Stopped.
        """
