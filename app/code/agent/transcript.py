"""Transcript of a session as JSON lines: written during the session, read for display and replay."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from app.code.agent.types import AgentEvent, AssistantTextEvent, CommandEnded, CommandStarted, Printed
from app.tools.loop import ToolCallEvent
from devices.msgspec_lock import learned

_MAX_LINE_BYTES = 8 << 20
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(learned(AgentEvent))


class Transcript:
    """Appends events to a file and flushes each of them, so that a crash loses no event that was shown."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("ab")

    def add(self, event: AgentEvent) -> None:
        """Write one event; a running command and its output are in the call and its result."""
        if isinstance(event, CommandStarted | Printed | CommandEnded):
            return
        self._file.write(_encoder.encode(event) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_transcript(path: Path) -> Iterator[AgentEvent]:
    """Events of a session; skips an incomplete last line, which a crash may leave."""
    with path.open("rb") as file:
        while line := file.readline(_MAX_LINE_BYTES):
            try:
                yield _decoder.decode(line)
            except (ValueError, RecursionError):
                if line.endswith(b"\n"):
                    raise
                return


def group_turns(events: Iterator[AgentEvent]) -> list[tuple[str, list[ToolCallEvent]]]:
    """The model's responses of a session, in order: (text, calls)."""
    turns: list[tuple[str, list[ToolCallEvent]]] = []
    open_turn = False
    for event in events:
        if isinstance(event, AssistantTextEvent):
            turns.append((event.text, []))
            open_turn = True
        elif isinstance(event, ToolCallEvent):
            if not open_turn:
                turns.append(("", []))
                open_turn = True
            turns[-1][1].append(event)
        else:
            open_turn = False
    return turns
