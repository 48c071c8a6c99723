"""Text that can be sent, whatever it was made of: UTF-8 has no lone surrogates.

Bytes that are not UTF-8 become such surrogates in arguments, in standard input and in names of files.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

_LONE_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def sendable(text: str) -> str:
    """The text with the sign for an unreadable character in the place of each lone surrogate."""
    return _LONE_SURROGATES.sub("\ufffd", text)


def encoded(value: object) -> bytes:
    """JSON of anything msgspec can encode."""
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
