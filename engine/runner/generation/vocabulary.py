"""The interface to a model's tokens."""

import abc
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet


class Vocabulary(abc.ABC):
    """Converts text to tokens and tokens to bytes; safe from any thread.

    `pieces[token]` are the bytes of each of the `size` tokens, with control tokens as text; `control` holds the
    tokens that are hidden by default; `ends` those that end a generation. With `spells` the tokens of a text
    contain exactly its bytes, so its length gives a lower limit of their number.
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
        """Return the token ids of `text`; `add_special` adds the model's start tokens (BOS).

        Raises: TooManyTokens: there are more than `limit`; raised before all are computed. Stopped.
        """
