"""Servers of the Model Context Protocol as further tools. Reading their configuration starts nothing."""

import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.code.agent.consent import Consent, ConsentRequest, shown_argv, shown_line, shown_text
from app.code.agent.mcp_stdio import stdio_pipes
from app.code.agent.types import ToolOutcome, ToolRefused, ToolSpec
from app.code.errors import InputFault

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from mcp import ClientSession

_NAME = re.compile(r"^[A-Za-z0-9_-]{1,48}$")
_MAX_CONFIG_BYTES = 1 << 20
_MAX_TOOLS = 128
_MAX_DESCRIPTION_CHARS = 2000
_MAX_RESULT_CHARS = 24_000
# A tool whose arguments need a longer description would fill the context by itself.
_MAX_SCHEMA_CHARS = 20_000
_CALL_LIMIT = timedelta(seconds=120)
# A server that fetches its own packages first may take long; one that says nothing is not waited for.
_START_LIMIT_S = 30.0


@dataclass(frozen=True)
class McpServerConfig:
    """How one server is started; it speaks over its standard input and output."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


class BadMcpConfig(InputFault):
    """The configuration of MCP servers cannot be used."""

    code = "bad_mcp_config"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is no usable configuration of MCP servers: {reason}")
        self.path = path
        self.reason = reason


def read_mcp_config(path: Path) -> list[McpServerConfig]:
    """The servers of a file {"mcpServers": {name: {"command", "args", "env"}}}, as other clients keep it.

    Raises: BadMcpConfig.
    """
    try:
        with path.open("rb") as file:
            known = json.loads(file.read(_MAX_CONFIG_BYTES))["mcpServers"]
        servers = []
        for name, entry in known.items():
            if not _NAME.match(name):
                raise BadMcpConfig(path, f"{name!r} is no name for a server")
            argv = (str(entry["command"]), *map(str, entry.get("args", ())))
            env = {str(key): str(value) for key, value in entry.get("env", {}).items()}
            servers.append(McpServerConfig(name, argv, env))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadMcpConfig(path, repr(error)) from error
    return servers


class McpTools:
    """One server's tools. It is started when its tools are first needed, and only with consent."""

    def __init__(self, config: McpServerConfig, folder: Path, consent: Consent) -> None:
        self._config = config
        self._folder = folder
        self._consent = consent
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._session: ClientSession | None = None
        self._specs: tuple[ToolSpec, ...] = ()
        self._names: dict[str, str] = {}

    def start(self) -> None:
        """Ask, start the server and learn its tools.

        Raises: ToolRefused: the person declined, or the server does not speak the protocol.
        """
        from anyio.from_thread import start_blocking_portal  # noqa: PLC0415 - costs time at start

        argv = shown_argv(self._config.argv)
        gets = ", ".join(self._config.env)
        request = ConsentRequest(
            kind="mcp server",
            title=shown_line(f"Start the MCP server {self._config.name}"),
            detail=argv,
            key=f"mcp server:{self._config.name}:{argv}",
            warning=shown_line(f"It gets these variables: {gets}") if gets else None,
        )
        if not self._consent.given(request):
            raise ToolRefused(f"The MCP server {self._config.name} was not started: the person declined.")
        try:
            self._portal = self._stack.enter_context(start_blocking_portal())
            self._session = self._stack.enter_context(self._connected(self._portal))
            tools = self._portal.call(_tools, self._session)
        except Exception as error:
            self.stop()
            raise ToolRefused(f"The MCP server {self._config.name} did not start: {error!r}") from error
        self._learn(tools)

    def _connected(self, portal: "BlockingPortal") -> "AbstractContextManager[ClientSession]":
        return portal.wrap_async_context_manager(_session(self._config, self._folder))

    def _learn(self, tools: list[Any]) -> None:
        specs = []
        for tool in tools[:_MAX_TOOLS]:
            name = f"mcp__{self._config.name}__{re.sub(r'[^A-Za-z0-9_-]', '_', tool.name)}"[:64]
            if name not in self._names:
                self._names[name] = tool.name
                description = shown_text((tool.description or "")[:_MAX_DESCRIPTION_CHARS])[:_MAX_DESCRIPTION_CHARS]
                if len(json.dumps(tool.input_schema)) <= _MAX_SCHEMA_CHARS:
                    specs.append(ToolSpec(name, description, tool.input_schema))
        self._specs = tuple(specs)

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model sees them; empty before `start`."""
        return self._specs

    def call(self, name: str, arguments: str) -> ToolOutcome:
        """Call one tool, with consent for exactly these arguments."""
        if self._portal is None or self._session is None:
            return ToolOutcome(f"The MCP server {self._config.name} is not running.", ok=False)
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return ToolOutcome(f"The arguments of {name} are no JSON: {error}", ok=False)
        if not isinstance(given, dict):
            return ToolOutcome(f"The arguments of {name} must be an object.", ok=False)
        request = ConsentRequest(
            kind="mcp",
            title=shown_line(f"{self._config.name}: {self._names[name]}"),
            detail=shown_text(json.dumps(given, indent=2, ensure_ascii=False)),
            key=f"mcp:{name}:{json.dumps(given, sort_keys=True)}",
        )
        if not self._consent.given(request):
            return ToolOutcome("The person declined this call.", ok=False)
        session, real_name = self._session, self._names[name]
        try:
            outcome: ToolOutcome = self._portal.call(_call, session, real_name, given)
        except Exception as error:  # noqa: BLE001 - whatever a foreign server breaks is told to the model
            return ToolOutcome(f"The MCP server failed: {error!r}", ok=False)
        return outcome

    def stop(self) -> None:
        """End the server."""
        self._session = self._portal = None
        self._stack.close()


def _session(config: McpServerConfig, folder: Path) -> Any:
    from contextlib import asynccontextmanager  # noqa: PLC0415 - beside its only use

    import anyio  # noqa: PLC0415 - with its only use
    from mcp import ClientSession  # noqa: PLC0415 - costs 0.4 s to import

    @asynccontextmanager
    async def connected() -> Any:
        pipes = stdio_pipes(config.argv, dict(config.env), folder)
        async with pipes as (read, write), ClientSession(read, write) as session:
            with anyio.fail_after(_START_LIMIT_S):
                await session.initialize()
            yield session

    return connected()


async def _tools(session: "ClientSession") -> list[Any]:
    import anyio  # noqa: PLC0415 - with its only use

    with anyio.fail_after(_START_LIMIT_S):
        return list((await session.list_tools()).tools)


async def _call(session: "ClientSession", name: str, arguments: dict[str, Any]) -> ToolOutcome:
    result = await session.call_tool(name, arguments, read_timeout_seconds=_CALL_LIMIT.total_seconds())
    texts = []
    for item in getattr(result, "content", ()):
        text = getattr(item, "text", None)
        texts.append(text if isinstance(text, str) else f"[{getattr(item, 'type', 'item')} left out]")
    joined = "\n".join(texts)
    return ToolOutcome(joined[:_MAX_RESULT_CHARS], ok=not getattr(result, "is_error", False))
