"""Server addresses."""

import socket
from urllib.parse import urlsplit


def is_plain_text(url: str) -> bool:
    """Whether traffic to this URL can be read on the network: no TLS, and not this machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in {"127.0.0.1", "localhost", "::1"}


def free_port() -> int:
    """Return a loopback port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
