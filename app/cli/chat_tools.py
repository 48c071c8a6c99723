"""Tools in a terminal chat: opened once, called with consent, told in one line each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.answer_facts import ToolCall
from app.cli.echo import echo
from app.cli.tools import ask_person
from app.tools.catalogue import offered, open_sources
from app.tools.consent import ConsentStore, ToolConsent
from app.tools.escape import shown_text
from app.tools.toolset import RunningServers, Toolset


class ChatTools:
    """The tools of one chat in the terminal."""

    def __init__(self, names: Sequence[str]) -> None:
        wanted = [source.name for source in offered()] if "all" in names else list(names)
        self._servers = RunningServers()
        consent = ToolConsent(ConsentStore(), ask_person)
        sources, problems = open_sources(wanted, Path.cwd(), self._servers, consent)
        for problem in problems:
            echo(shown_text(problem), fg="yellow", err=True)
        self._tools = Toolset(sources, consent)

    def as_openai(self) -> list[dict[str, Any]]:
        """What goes into the request."""
        return [spec.as_openai() for spec in self._tools.specs()]

    def carry_out(self, text: str, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        """Messages with the calls and their results."""
        ids = [call.id or f"call_{number}" for number, call in enumerate(calls)]
        results = []
        for number, call in zip(ids, calls, strict=True):
            outcome = self._tools.call(call.name, call.arguments)
            state = "" if outcome.ok else " failed or declined"
            echo(f"· {shown_text(self._tools.title(call.name))}{state}", fg="cyan", err=True)
            results.append({"role": "tool", "tool_call_id": number, "content": outcome.text})
        asked = [
            {"id": number, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for number, call in zip(ids, calls, strict=True)
        ]
        return [{"role": "assistant", "content": text, "tool_calls": asked}, *results]

    def close(self) -> None:
        """End the servers."""
        self._servers.close()
