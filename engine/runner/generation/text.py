"""Decodes token bytes to text: only whole characters; finds stop strings across token boundaries."""

import codecs
from collections.abc import Iterable


class TextStream:
    """Converts token bytes to text that is safe to send.

    Bytes that may start a stop string are withheld until that is decided, and so are incomplete UTF-8 characters.
    Invalid UTF-8 becomes U+FFFD. If a limit cuts the last character, its bytes are dropped.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(s.encode() for s in stops if s)
        self._pending = b""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.stop: str | None = None

    def push(self, piece: bytes) -> str:
        """Return the text that is certain after these bytes. If a stop string was found, `stop` names it."""
        if not self._stops:
            return self._decode(piece)
        pending = self._pending + piece
        cut, matched_stop = len(pending), None
        for stop in self._stops:
            at = pending.find(stop)
            if 0 <= at < cut or (at >= 0 and matched_stop is None):
                cut, matched_stop = at, stop
        if matched_stop is not None:
            self._pending = b""
            self.stop = matched_stop.decode()
            return self._decode(pending[:cut], True)
        keep = max((_overlap(pending, stop) for stop in self._stops), default=0)
        self._pending = pending[len(pending) - keep :]
        return self._decode(pending[: len(pending) - keep])

    def finish(self) -> str:
        """Return the withheld text if the generation ends without a stop string."""
        pending, self._pending = self._pending, b""
        return self._decode(pending)


def _overlap(text: bytes, stop: bytes) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
