"""Loaded by every Python process of a walk without a network: records each attempt to reach another machine."""

import os
import socket
import sys

LOCAL = ("127.0.0.1", "::1", "localhost")
RECORD = os.environ["WALK_CONNECTIONS"]


def raise_loopback() -> None:
    """A new network namespace has its loopback interface down."""
    import fcntl
    import struct

    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def record(event: str, arguments: tuple[object, ...]) -> None:
    if event not in {"socket.connect", "socket.getaddrinfo", "socket.sendto"}:
        return
    target = arguments[1] if event != "socket.getaddrinfo" else arguments[:2]
    host = target[0] if isinstance(target, tuple) else str(target)
    if host in LOCAL or str(host).startswith(("/", "\0")):
        return
    with open(RECORD, "a", encoding="utf-8") as file:  # noqa: PTH123 - nothing more is imported into each process
        file.write(f"{event} {host} {sys.argv}\n")


if os.environ.get("WALK_OWN_NETWORK"):
    raise_loopback()
sys.addaudithook(record)
