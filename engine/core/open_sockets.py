"""Ending an HTTP stream while another thread waits for its next byte."""

import socket
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit


class OpenSockets:
    """The sockets that an HTTP client opened: give `trace` to its requests as their extension of that name.

    Closing a client closes its sockets, but a socket stays open for as long as a thread reads from it.
    """

    def __init__(self) -> None:
        self._closed = False
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Hear from the HTTP client what it does."""
        if event == "connection.connect_tcp.complete":
            opened = info["return_value"].get_extra_info("socket")
            self._sockets.add(opened)
            if self._closed:
                _hang_up(opened)

    def hang_up(self) -> None:
        """End all connections, now and to come, on both sides."""
        self._closed = True
        for opened in list(self._sockets):
            _hang_up(opened)


def _hang_up(opened: socket.socket) -> None:
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


# Addresses of servers.


def is_plain_text(url: str) -> bool:
    """Whether what is sent there can be read on the way: no TLS, and not this machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in {"127.0.0.1", "localhost", "::1"}


def free_port() -> int:
    """A port of loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
