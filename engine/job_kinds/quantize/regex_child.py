"""The child process that searches a response for a user's regex, which could otherwise block a server for hours."""

import re

import msgspec

from devices import child_service
from devices.msgspec_lock import learned


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern and the text to search."""

    pattern: str
    text: str


def answer(body: bytes) -> bytes:
    """Whether the pattern matches, both in msgpack."""
    search = msgspec.msgpack.decode(body, type=learned(Search))
    return msgspec.msgpack.encode(re.search(search.pattern, search.text) is not None)


if __name__ == "__main__":
    child_service.serve(answer)
