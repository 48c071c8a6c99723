"""Ends an HTTP stream while another thread waits for its next byte, and helpers for server addresses."""

import socket
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit


class OpenSockets:
    """The sockets that an HTTP client opened. Pass `trace` to its requests as the extension of that name.

    Closing a client closes its sockets, but a socket stays open while a thread reads from it.
    """

    def __init__(self) -> None:
        self._closed = False
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Trace callback of the HTTP client: records each new connection."""
        if event == "connection.connect_tcp.complete":
            opened = info["return_value"].get_extra_info("socket")
            self._sockets.add(opened)
            if self._closed:
                _hang_up(opened)

    def hang_up(self) -> None:
        """Shut down all current and future connections in both directions."""
        self._closed = True
        for opened in list(self._sockets):
            _hang_up(opened)


def _hang_up(opened: socket.socket) -> None:
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


# Server addresses.


def is_plain_text(url: str) -> bool:
    """Whether traffic to this URL can be read on the network: no TLS, and not this machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in {"127.0.0.1", "localhost", "::1"}


def free_port() -> int:
    """Return a loopback port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
