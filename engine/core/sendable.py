"""Makes any text encodable as UTF-8, which has no lone surrogates.

Python decodes invalid UTF-8 in arguments, standard input and file names to lone surrogates.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

_LONE_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def sendable(text: str) -> str:
    """Return the text with each lone surrogate replaced by U+FFFD."""
    return _LONE_SURROGATES.sub("\ufffd", text)


def encoded(value: object) -> bytes:
    """Encode anything that msgspec can encode as JSON."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_sendable(msgspec.to_builtins(value)))


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, Mapping):
        return {_sendable(key): _sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    return value
