"""Model Context Protocol servers as additional tools of the coding agent."""

import json
from pathlib import Path

from app.tools.consent import Consent, ConsentRequest, start_request
from app.tools.mcp_config import McpServerConfig
from app.tools.mcp_server import McpServer
from app.tools.types import ToolOutcome, ToolRefused, ToolSpec, decode_arguments, shown_line, shown_text


class McpTools:
    """Tools of one server, which is started on first use and only with consent."""

    def __init__(self, config: McpServerConfig, folder: Path, consent: Consent) -> None:
        self._server = McpServer(config, folder)
        self._consent = consent

    def start(self) -> None:
        """Request consent, start the server and read its tools.

        Raises: ToolRefused: the user declined, or the server does not speak the protocol.
        """
        config = self._server.config
        if not self._consent.given(start_request(config)):
            raise ToolRefused(f"The MCP server {config.name} was not started: the person declined.")
        self._server.start()

    def specs(self) -> tuple[ToolSpec, ...]:
        """Tool specifications for the model; empty before `start`."""
        return self._server.specs

    def call(self, name: str, arguments: str) -> ToolOutcome:
        """Call one tool, with consent for exactly these arguments."""
        server = self._server
        if not server.running:
            return ToolOutcome(f"The MCP server {server.config.name} is not running.", ok=False)
        try:
            decoded = decode_arguments(name, arguments)
        except ToolRefused as error:
            return ToolOutcome(str(error), ok=False)
        request = ConsentRequest(
            kind="mcp",
            title=shown_line(f"{server.config.name}: {server.real_name(name)}"),
            detail=shown_text(json.dumps(decoded, indent=2, ensure_ascii=False)),
            key=f"mcp:{name}:{json.dumps(decoded, sort_keys=True)}",
        )
        if not self._consent.given(request):
            return ToolOutcome("The person declined this call.", ok=False)
        return server.call(name, decoded)

    def stop(self) -> None:
        self._server.stop()
