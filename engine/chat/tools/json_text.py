"""Pieces of JSON text: where a reader can be in it, string bodies, keys and numbers in other notations."""

import json
from enum import Enum, auto


class State(Enum):
    """What a reader of JSON expects next."""

    VALUE = auto()
    KEY = auto()
    COLON = auto()
    AFTER = auto()
    STRING = auto()
    QUOTE = auto()  # a quote that may end the string
    BARE = auto()
    DONE = auto()


def escaped(text: str) -> str:
    """Text as the inside of a JSON string."""
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)[1:-1]


def decoded(key: str) -> str:
    """The text of a JSON string, or the string itself if it is none."""
    try:
        return str(json.loads(key))
    except ValueError:
        return key


def number_or_string(word: str) -> str:
    """Numbers in other notations as JSON numbers (`+1`, `.5`, `1_000`), everything else as a string."""
    try:
        value = float(word)
    except ValueError:
        return json.dumps(word)
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 - NaN
        return "null"
    return repr(int(value)) if value.is_integer() and "e" not in word.lower() else repr(value)
