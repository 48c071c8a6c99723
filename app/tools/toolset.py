"""The tools of one chat: owner of each name, specifications for the model, and calls with consent."""

import json
import logging
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from app.tools.consent import ConsentRequest, ToolConsent, fingerprint_of, start_request, tool_fingerprint
from app.tools.mcp_config import McpServerConfig
from app.tools.mcp_server import McpServer
from app.tools.types import ToolOutcome, ToolRefused, ToolSpec, decode_arguments, shown_line, shown_text

log = logging.getLogger(__name__)


class Source(Protocol):
    """A source of tools: a server, or a built-in one. `name` is the name that enables it."""

    name: str

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """Tool specifications for the model."""
        ...

    def title(self, tool: str) -> str:
        """Display name of a tool, with its source."""
        ...

    def refresh(self) -> None:
        """Reload the tools if they have changed."""
        ...

    def call(self, tool: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Run a call that was allowed."""
        ...


class ServerSource:
    """A running MCP server."""

    def __init__(self, server: McpServer) -> None:
        self.name = server.config.name
        self._server = server

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """Tool specifications for the model."""
        return self._server.specs

    def title(self, tool: str) -> str:
        return f"{self.name}: {self._server.real_name(tool)}"

    def refresh(self) -> None:
        """Reload the list if the server reports a change; if it cannot be read, there are no tools."""
        if self._server.changed:
            try:
                self._server.learn()
            except Exception:  # noqa: BLE001 - a server may cause any error
                self._server.specs = ()

    def call(self, tool: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Run a call that was allowed."""
        return self._server.call(tool, arguments)


class Toolset:
    """All sources of a chat. All methods block: do not call them on a window's main thread."""

    def __init__(self, sources: Sequence[Source], consent: ToolConsent, unasked: Collection[str] = ()) -> None:
        """Create a toolset. Calls of the sources in `unasked` need no consent."""
        self._sources = tuple(sources)
        self._consent = consent
        self._unasked = frozenset(unasked)
        self._owners: dict[str, tuple[Source, ToolSpec]] = {}

    def specs(self) -> tuple[ToolSpec, ...]:
        """Specifications for the model, without forbidden tools and without duplicate names."""
        self._owners = {}
        for source in self._sources:
            source.refresh()
            for spec in source.specs:
                if spec.name not in self._owners and not self._consent.refused(spec.name):
                    self._owners[spec.name] = (source, spec)
        return tuple(spec for _, spec in self._owners.values())

    def title(self, name: str) -> str:
        """Display name of a tool."""
        owner = self._owners.get(name)
        return shown_line(owner[0].title(name) if owner else name)

    def call(self, name: str, arguments: str) -> ToolOutcome:
        """Run one call of the model; an error becomes a result that the model can act on."""
        if name not in self._owners:
            self.specs()
        if name not in self._owners:
            names = ", ".join(self._owners) or "none"
            return ToolOutcome(f"There is no tool {name!r}. Tools: {names}.", ok=False)
        source, spec = self._owners[name]
        try:
            decoded = decode_arguments(name, arguments)
        except ToolRefused as error:
            return ToolOutcome(str(error), ok=False)
        request = ConsentRequest(
            kind="tool",
            title=shown_line(source.title(name)),
            detail=shown_text(json.dumps(decoded, indent=2, ensure_ascii=False)),
            key=name,
        )
        if source.name not in self._unasked and not self._consent.given(request, tool_fingerprint(spec)):
            return ToolOutcome("The person declined this call.", ok=False)
        try:
            return source.call(name, decoded)
        except Exception as error:  # a mistake in a tool must not end the answer
            log.exception("the tool %s failed", name)
            return ToolOutcome(f"The tool failed: {type(error).__name__}.", ok=False)


class RunningServers:
    """Running servers, shared by the chats of one window or terminal."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], McpServer] = {}

    def open(self, config: McpServerConfig, folder: Path, consent: ToolConsent) -> ServerSource:
        """Open the server; starts it with consent if it does not run. Raises: ToolRefused."""
        fingerprint = fingerprint_of([config.argv, sorted(config.env), config.url, sorted(config.headers)])
        key = (fingerprint_of([fingerprint, dict(config.env), dict(config.headers), config.call_s]), str(folder))
        running = self._running.get(key)
        if running is not None and not running.alive:
            self._running.pop(key).stop()
            running = None
        if running is None:
            if not consent.given(start_request(config), fingerprint):
                raise ToolRefused(f"The MCP server {config.name} was not started: the person declined.")
            running = McpServer(config, folder)
            running.start()
            self._running[key] = running
        return ServerSource(running)

    def cancel_calls(self) -> None:
        """Cancel the running calls; the servers continue."""
        for server in list(self._running.values()):
            server.cancel_calls()

    def close(self) -> None:
        """Stop all servers concurrently, because each may take a while."""
        ending = [threading.Thread(target=server.stop, name="end-mcp") for server in self._running.values()]
        self._running.clear()
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()
