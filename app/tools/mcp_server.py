"""One server of the Model Context Protocol, connected: its tools, learned within bounds, and calls of them."""

import json
import logging
import re
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from app.tools.escape import shown_text
from app.tools.mcp_config import McpServerConfig
from app.tools.mcp_http import http_pipes
from app.tools.mcp_stdio import stdio_pipes
from app.tools.types import ToolOutcome, ToolRefused, ToolSpec

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from mcp import ClientSession

_MAX_TOOLS: Final = 128
_MAX_PAGES: Final = 16
_MAX_DESCRIPTION_CHARS: Final = 2000
MAX_RESULT_CHARS: Final = 24_000
# A tool whose arguments need a longer description would fill the context by itself.
_MAX_SCHEMA_CHARS: Final = 20_000
_MAX_NAME: Final = 64
# The code of errors that mean the connection is gone. Source: mcp_types.CONNECTION_CLOSED.
_LOST: Final = -32000
# A server that fetches its own packages first may take long; one that says nothing is not waited for.
START_LIMIT_S = 30.0


class McpServer:
    """A connection that is made by `start` and ended by `stop`. Calls block; any thread may make them."""

    def __init__(self, config: McpServerConfig, folder: Path) -> None:
        self.config = config
        self.specs: tuple[ToolSpec, ...] = ()
        self.left_out: tuple[str, ...] = ()  # tools that cannot be offered, with the reason
        self._folder = folder
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._session: ClientSession | None = None
        self._names: dict[str, str] = {}
        self._changed = False
        self._calls: set[Future[ToolOutcome]] = set()
        self._errors = bytearray()
        self.alive = False  # it answered last time

    @property
    def running(self) -> bool:
        """It was started and not stopped; its process may have ended since."""
        return self._session is not None

    @property
    def changed(self) -> bool:
        """The server says that its tools are others now: `learn` reads them."""
        return self._changed

    def real_name(self, name: str) -> str:
        """A tool's name as the server has it."""
        return self._names[name]

    def start(self) -> None:
        """Start or reach the server and learn its tools. Raises: ToolRefused: it does not speak the protocol."""
        from anyio.from_thread import start_blocking_portal  # noqa: PLC0415 - costs time at start

        # The package reports what a server does wrong as errors of the program, with tracebacks on stderr.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        try:
            self._portal = self._stack.enter_context(start_blocking_portal())
            self._session = self._stack.enter_context(self._connected(self._portal))
            self.learn()
            self.alive = True
        except Exception as error:
            self.stop()
            reason = shown_text(_reason(error))[:400] + self._last_words()
            raise ToolRefused(f"The MCP server {self.config.name} did not start: {reason}") from error

    def learn(self) -> None:
        """Read the list of tools. Raises: whatever the server breaks."""
        assert self._portal is not None
        assert self._session is not None
        self._changed = False
        self._take(self._portal.call(_tools, self._session))

    def call(self, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Call one tool."""
        if self._portal is None or self._session is None:
            return ToolOutcome(f"The MCP server {self.config.name} is not running.", ok=False)
        future: Future[ToolOutcome] | None = None
        try:
            future = self._portal.start_task_soon(
                _call, self._session, self._names[name], arguments, self.config.call_s
            )
            self._calls.add(future)
            return future.result()
        except CancelledError:
            return ToolOutcome("Cancelled by the person.", ok=False)
        except Exception as error:  # noqa: BLE001 - whatever a foreign server breaks is told to the model
            self.alive = getattr(getattr(error, "error", None), "code", _LOST) != _LOST
            return ToolOutcome(f"The MCP server failed: {shown_text(_reason(error))[:400]}", ok=False)
        finally:
            if future is not None:
                self._calls.discard(future)

    def cancel_calls(self) -> None:
        """End the calls under way, from any thread."""
        for future in list(self._calls):
            future.cancel()

    def stop(self) -> None:
        """End the connection, and the server if it was started here."""
        self._session = self._portal = None
        self._stack.close()

    def _last_words(self) -> str:
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        return f" (it said: {shown_text(lines[-1])[:300]})" if lines else ""

    def _connected(self, portal: "BlockingPortal") -> "AbstractContextManager[ClientSession]":
        return portal.wrap_async_context_manager(self._opened())

    @asynccontextmanager
    async def _opened(self) -> Any:
        import anyio  # noqa: PLC0415 - with its only use
        from mcp import ClientSession  # noqa: PLC0415 - costs 0.4 s to import

        config = self.config
        pipes = (
            http_pipes(config.url, config.headers, config.call_s)
            if config.url
            else stdio_pipes(config.argv, dict(config.env), self._folder, self._errors)
        )
        async with pipes as (read, write), ClientSession(read, write, message_handler=self._hear) as session:
            with anyio.fail_after(START_LIMIT_S):
                await session.initialize()
            yield session

    async def _hear(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._changed = True

    def _take(self, tools: list[Any]) -> None:
        specs: list[ToolSpec] = []
        left_out: list[str] = [f"{len(tools) - _MAX_TOOLS} more tools"] if len(tools) > _MAX_TOOLS else []
        self._names = {}
        for tool in tools[:_MAX_TOOLS]:
            name = _distinct(f"mcp__{self.config.name}__{re.sub(r'[^A-Za-z0-9_-]', '_', tool.name)}", self._names)
            description = shown_text((tool.description or "")[:_MAX_DESCRIPTION_CHARS])[:_MAX_DESCRIPTION_CHARS]
            try:
                length = len(json.dumps(tool.input_schema))
            except (ValueError, RecursionError):
                length = _MAX_SCHEMA_CHARS + 1
            if length > _MAX_SCHEMA_CHARS:
                left_out.append(f"{name}: its arguments take more than {_MAX_SCHEMA_CHARS} characters to describe")
                continue
            self._names[name] = tool.name
            specs.append(ToolSpec(name, description, tool.input_schema))
        self.specs, self.left_out = tuple(specs), tuple(left_out)


def _distinct(wanted: str, taken: dict[str, str]) -> str:
    """A name nobody has yet, with a number at its end where two would be the same."""
    name, number = wanted[:_MAX_NAME], 1
    while name in taken:
        number += 1
        name = f"{wanted[: _MAX_NAME - 4]}_{number}"
    return name


def _reason(error: BaseException) -> str:
    """The first thing that went wrong, out of the groups that tasks put around it."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"it did not answer within {START_LIMIT_S:g} s"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def _tools(session: "ClientSession") -> list[Any]:
    import anyio  # noqa: PLC0415 - with its only use

    found: list[Any] = []
    cursor: str | None = None
    with anyio.fail_after(START_LIMIT_S):
        for _ in range(_MAX_PAGES):
            from mcp import types  # noqa: PLC0415 - costs 0.4 s to import

            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            found += page.tools
            cursor = page.next_cursor
            if not cursor or len(found) > _MAX_TOOLS:
                break
    return found


async def _call(session: "ClientSession", name: str, arguments: dict[str, Any], limit_s: float) -> ToolOutcome:
    """Ask without `session.call_tool`.

    That checks results against the server's own schema, whose regular expressions may run for ever.
    """
    import anyio  # noqa: PLC0415 - with its only use
    from mcp import types  # noqa: PLC0415 - costs 0.4 s to import

    request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=arguments))
    try:
        with anyio.fail_after(limit_s):
            result = await session.send_request(request, types.CallToolResult)
    except TimeoutError:
        return ToolOutcome(f"The tool did not answer within {limit_s:g} s.", ok=False)
    texts = []
    for item in result.content:
        text = getattr(item, "text", None)
        texts.append(text if isinstance(text, str) else f"[{getattr(item, 'type', 'item')} left out]")
    if not texts and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    joined = "\n".join(texts)
    cut = f"\n[cut: {len(joined)} characters, the first {MAX_RESULT_CHARS} are here]"
    shown = joined if len(joined) <= MAX_RESULT_CHARS else joined[:MAX_RESULT_CHARS] + cut
    return ToolOutcome(shown, ok=not result.is_error)
