"""What a command is asked: its prompt, and below it the text that is piped into it."""

import os
import stat
import sys
import threading

import click

from app.cli.echo import echo

# A pipe that stays open and empty is nobody's text (ssh and schedulers leave such ones); slower writers are told.
_FIRST_BYTE_S = 3.0
# Far above any context; a mistake such as a disk's image ends here.
_MAX_BYTES = 16 << 20


def asked(prompt: str | None) -> str | None:
    """The prompt with what stands on standard input below it; '-' is standard input alone.

    Raises: click.UsageError: more than 16 MiB are piped in.
    """
    if prompt is None:
        return None
    if prompt == "-":
        return standard_input()
    text = _piped()
    return f"{prompt}\n\n{text}" if text.strip() else prompt


def standard_input() -> str:
    """All of standard input, whatever its bytes are.

    Raises: click.UsageError: it is more than 16 MiB.
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
    except (AttributeError, OSError, ValueError):  # closed, or no file at all
        return ""
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return ""
    found: list[bytes] = []
    begun, ended = threading.Event(), threading.Event()

    def read() -> None:
        size = 0
        try:
            while size <= _MAX_BYTES and (part := os.read(descriptor, 1 << 16)):
                found.append(part)
                size += len(part)
                begun.set()
        except OSError:
            pass
        ended.set()
        begun.set()

    # A thread, for Windows cannot wait for a pipe with a time limit.
    threading.Thread(target=read, name="standard-input", daemon=True).start()
    if not begun.wait(_FIRST_BYTE_S):
        echo(f"Nothing came on standard input within {_FIRST_BYTE_S:.0f} s: asking without it.", err=True)
        return ""
    ended.wait()
    return _text(b"".join(found)).rstrip("\n")
