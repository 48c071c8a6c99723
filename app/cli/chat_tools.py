"""Tools in a terminal chat: started once, called with the user's consent, reported in one line per call."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.answer_facts import ToolCall
from app.cli.echo import InputRefused, echo
from app.cli.tools import ask_person
from app.tools.catalogue import offered, open_sources
from app.tools.consent import ConsentStore, ToolConsent
from app.tools.loop import ToolCallEvent, answer_message, carried_out, result_message
from app.tools.toolset import RunningServers, Toolset
from app.tools.types import shown_text


class ChatTools:
    """The tools of one chat in the terminal."""

    def __init__(self, names: Sequence[str]) -> None:
        available = [source.name for source in offered()]
        if unknown := sorted(set(names) - {*available, "all"}):
            raise InputRefused(f"There are no tools {shown_text(unknown[0])!r}; `tessera tools list` shows them.")
        source_names = available if "all" in names else list(names)
        self._servers = RunningServers()
        consent = ToolConsent(ConsentStore(), ask_person)
        sources, problems = open_sources(source_names, Path.cwd(), self._servers, consent)
        for problem in problems:
            echo(shown_text(problem), fg="yellow", err=True)
        self._tools = Toolset(sources, consent)

    def as_openai(self) -> list[dict[str, Any]]:
        """Tool specifications for the request."""
        return [spec.as_openai() for spec in self._tools.specs()]

    def carry_out(self, text: str, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        """Run the calls; return the messages with calls and results."""
        messages = [answer_message(text, calls)]
        for event in carried_out(self._tools, calls):
            if isinstance(event, ToolCallEvent):
                title = shown_text(self._tools.title(event.tool))
                continue
            state = "" if event.ok else " failed or declined"
            echo(f"· {title}{state}", fg="cyan", err=True)
            messages.append(result_message(event.call_id, event.text))
        return messages

    def close(self) -> None:
        """Stop the MCP servers."""
        self._servers.close()
