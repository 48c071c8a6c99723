"""The prompt of a command: its argument, followed by text piped to stdin."""

import os
import stat
import sys
import threading

import click

from app.cli.echo import echo

# An empty pipe that stays open is not a prompt: ssh and schedulers leave such pipes. A slower writer gets a
# message.
_FIRST_BYTE_S = 3.0
# Far larger than any context; stops mistakes such as a piped disk image.
_MAX_BYTES = 16 << 20


def read_prompt(prompt: str | None) -> str | None:
    """The prompt, followed by the text on stdin; '-' means stdin only.

    Raises: click.UsageError: stdin has more than 16 MiB.
    """
    if prompt is None:
        return None
    if prompt == "-":
        return standard_input()
    text = _piped()
    return f"{prompt}\n\n{text}" if text.strip() else prompt


def standard_input() -> str:
    """All of stdin as text; invalid UTF-8 is replaced.

    Raises: click.UsageError: stdin has more than 16 MiB.
    """
    return _text(sys.stdin.buffer.read(_MAX_BYTES + 1))


def _text(data: bytes) -> str:
    if len(data) > _MAX_BYTES:
        raise click.UsageError("more than 16 MiB on standard input: no model reads that much at once.")
    return data.decode("utf-8", "replace").removeprefix("\ufeff")


def _piped() -> str:
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):  # stdin is closed or is not a file
        return ""
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return ""
    parts: list[bytes] = []
    started, ended = threading.Event(), threading.Event()

    def read() -> None:
        size = 0
        try:
            while size <= _MAX_BYTES and (part := os.read(descriptor, 1 << 16)):
                parts.append(part)
                size += len(part)
                started.set()
        except OSError:
            pass
        ended.set()
        started.set()

    # A thread, because Windows cannot wait for a pipe with a timeout.
    threading.Thread(target=read, name="standard-input", daemon=True).start()
    if not started.wait(_FIRST_BYTE_S):
        echo(f"Nothing came on standard input within {_FIRST_BYTE_S:.0f} s: asking without it.", err=True)
        return ""
    ended.wait()
    return _text(b"".join(parts)).rstrip("\n")
