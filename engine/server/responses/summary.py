"""The summary in a `compaction` item. It is packed, not encrypted: it never leaves the people who wrote it."""

import base64
import binascii
from typing import Final

from engine.core.errors import InputFault

_MARK: Final = "tessera-summary-1:"


def sealed(summary: str) -> str:
    """The item's `encrypted_content`."""
    return _MARK + base64.urlsafe_b64encode(summary.encode()).decode()


def opened(content: object, param: str) -> str:
    """The summary of an item. Raises: InputFault: it was not made here."""
    try:
        if isinstance(content, str) and content.startswith(_MARK):
            return base64.urlsafe_b64decode(content.removeprefix(_MARK)).decode()
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise InputFault(f"{param} was not made by this server's /v1/responses/compact.", param)
