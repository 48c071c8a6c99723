"""The child that looks for a user's pattern in an answer: one that backtracks would hold a server for hours."""

import re

import msgspec

from devices import child_service
from devices.msgspec_lock import learned


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern, and the text it may be in."""

    pattern: str
    text: str


def answer(body: bytes) -> bytes:
    """Whether it is in it, both msgpack."""
    search = msgspec.msgpack.decode(body, type=learned(Search))
    return msgspec.msgpack.encode(re.search(search.pattern, search.text) is not None)


if __name__ == "__main__":
    child_service.serve(answer)
