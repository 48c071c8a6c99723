"""Connection to one MCP server: reads its tools, with limits, and calls them."""

import contextlib
import json
import logging
import re
import subprocess
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from app.tools.mcp_config import McpServerConfig
from app.tools.mcp_sign_in import SIGN_IN_S, SignIn, stored_sign_in
from app.tools.types import ToolOutcome, ToolRefused, ToolSpec, shown_text
from devices.environment import program_environment

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from mcp import ClientSession

_MAX_TOOLS: Final = 128
_MAX_PAGES: Final = 16
_MAX_DESCRIPTION_CHARS: Final = 2000
MAX_RESULT_CHARS: Final = 24_000
# A tool with a longer schema would fill the context by itself.
_MAX_SCHEMA_CHARS: Final = 20_000
_MAX_NAME: Final = 64
# Error code for a lost connection. Source: mcp_types.CONNECTION_CLOSED.
_LOST: Final = -32000
# A server that first downloads its packages may take long; a silent one must not block.
START_LIMIT_S = 30.0


class McpServer:
    """A connection from `start` to `stop`. Calls block; thread-safe."""

    def __init__(self, config: McpServerConfig, folder: Path, sign_in: SignIn | None = None) -> None:
        """Create it. `sign_in`: may ask the user in a browser; else a stored sign-in is used."""
        self.config = config
        self._sign_in = sign_in
        self._refused = False  # the server answered that it needs a sign-in
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
        self.alive = False  # the last call got a response

    @property
    def running(self) -> bool:
        """Return True between `start` and `stop`, even if the server's process has ended."""
        return self._session is not None

    @property
    def changed(self) -> bool:
        """Return True if the server reported that its tools have changed; `learn` reads them."""
        return self._changed

    def real_name(self, name: str) -> str:
        return self._names[name]

    def start(self) -> None:
        """Start or contact the server and read its tools. Raises: ToolRefused: it does not speak the protocol."""
        from anyio.from_thread import start_blocking_portal

        # The package logs a server's mistakes as program errors, with tracebacks on stderr.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        try:
            self._portal = self._stack.enter_context(start_blocking_portal())
            self._session = self._stack.enter_context(self._connected(self._portal))
            self.learn()
            self.alive = True
        except Exception as error:
            self.stop()
            if self._refused and self._sign_in is None and not self._has_key():
                raise SignInNeeded(self.config.name) from error
            reason = shown_text(_reason(error))[:400] + self._last_lines()
            raise ToolRefused(f"The MCP server {self.config.name} did not start: {reason}") from error

    def learn(self) -> None:
        """Read the list of tools. Raises: any error that the server causes."""
        assert self._portal is not None
        assert self._session is not None
        self._changed = False
        self._take(self._portal.call(_tools, self._session))

    def call(self, name: str, arguments: dict[str, Any]) -> ToolOutcome:
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
        except Exception as error:  # noqa: BLE001 - any server error becomes a result for the model
            self.alive = getattr(getattr(error, "error", None), "code", _LOST) != _LOST
            return ToolOutcome(f"The MCP server failed: {shown_text(_reason(error))[:400]}", ok=False)
        finally:
            if future is not None:
                self._calls.discard(future)

    def cancel_calls(self) -> None:
        """Cancel the running calls, from any thread."""
        for future in list(self._calls):
            future.cancel()

    def stop(self) -> None:
        """Close the connection, and stop the server if it was started here."""
        self._session = self._portal = None
        self._stack.close()

    def _last_lines(self) -> str:
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        return f" (it said: {shown_text(lines[-1])[:300]})" if lines else ""

    def _connected(self, portal: "BlockingPortal") -> "AbstractContextManager[ClientSession]":
        return portal.wrap_async_context_manager(self._opened())

    @asynccontextmanager
    async def _opened(self) -> Any:
        import anyio
        from mcp import ClientSession

        config = self.config
        pipes = (
            http_pipes(config.url, config.headers, config.call_s, self._auth(), self._on_refused)
            if config.url
            else stdio_pipes(config.argv, dict(config.env), self._folder, self._errors)
        )
        async with pipes as (read, write), ClientSession(read, write, message_handler=self._hear) as session:
            with anyio.fail_after(START_LIMIT_S if self._sign_in is None else SIGN_IN_S):
                await session.initialize()
            yield session

    def _has_key(self) -> bool:
        return any(name.lower() == "authorization" for name in self.config.headers)

    def _auth(self) -> Any:
        """How requests are signed; None if the user gave a key or the server has asked for nothing yet."""
        if self._has_key():
            return None
        return stored_sign_in(self.config.url) if self._sign_in is None else self._sign_in.provider()

    def _on_refused(self) -> None:
        self._refused = True

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


class SignInNeeded(ToolRefused):
    """The server requires a sign-in."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The MCP server {name} asks you to sign in: test it under Tools and press Sign in, or run "
            f"tessera tools sign-in {name}"
        )


@dataclass(frozen=True)
class Probed:
    """The tools of a server, or the problem that prevented its start."""

    specs: tuple[ToolSpec, ...] = ()
    left_out: tuple[str, ...] = ()
    problem: str = ""
    needs_sign_in: bool = False


def probe(config: McpServerConfig, folder: Path) -> Probed:
    """Start or contact a server, read its tools and stop it. The user must have agreed to that."""
    return _probed(McpServer(config, folder))


def sign_in(
    config: McpServerConfig,
    folder: Path,
    open_page: Callable[[str], object],
    on_start: Callable[[SignIn], object] = lambda _: None,
) -> Probed:
    """Let the user sign in to a server in a browser, and read its tools. `on_start` gets what can cancel it."""
    with SignIn(config.url, open_page) as signing:
        on_start(signing)
        server = McpServer(config, folder, signing)
        try:
            probed = _probed(server)
        except KeyboardInterrupt:
            signing.cancel()
            server.stop()
            raise
        if not probed.problem:
            signing.keep()
        return probed


def _probed(server: McpServer) -> Probed:
    try:
        server.start()
    except ToolRefused as error:
        return Probed(problem=str(error), needs_sign_in=isinstance(error, SignInNeeded))
    try:
        return Probed(server.specs, server.left_out)
    finally:
        server.stop()


def short_name(server: str, tool: str) -> str:
    """A tool's name without the prefix of its server."""
    return tool.removeprefix(f"mcp__{server}__")


def _distinct(preferred: str, used: dict[str, str]) -> str:
    """A unique name, with a number at its end if the name is taken."""
    name, number = preferred[:_MAX_NAME], 1
    while name in used:
        number += 1
        name = f"{preferred[: _MAX_NAME - 4]}_{number}"
    return name


def _reason(error: BaseException) -> str:
    """Message of the first error inside the exception groups that tasks add."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"it did not answer within {START_LIMIT_S:g} s; if it was downloading its packages, try again"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def _tools(session: "ClientSession") -> list[Any]:
    import anyio

    tools: list[Any] = []
    cursor: str | None = None
    with anyio.fail_after(START_LIMIT_S):
        for _ in range(_MAX_PAGES):
            from mcp import types

            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            tools += page.tools
            cursor = page.next_cursor
            if not cursor or len(tools) > _MAX_TOOLS:
                break
    return tools


async def _call(session: "ClientSession", name: str, arguments: dict[str, Any], limit_s: float) -> ToolOutcome:
    """Call a tool without `session.call_tool`.

    `session.call_tool` checks results against the server's own schema, whose regular expressions may never
    terminate.
    """
    import anyio
    from mcp import types

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


# Limit of one response; larger than the longest line accepted from a server's stdout.
MAX_ANSWER_BYTES: Final = 8 << 20
# Limit of one event stream over the life of a connection.
MAX_STREAM_BYTES: Final = 256 << 20
_CONNECT_S: Final = 15.0
_UNAUTHORIZED: Final = 401


@asynccontextmanager
async def http_pipes(
    url: str, headers: Mapping[str, str], read_s: float, auth: Any, on_refused: Callable[[], object]
) -> AsyncIterator[Any]:
    """The (read, write) streams for an `mcp.ClientSession`. `read_s` is the longest pause in a response.

    `auth` signs the requests; `on_refused` is called when the server answers that it needs a sign-in. Redirects to
    another origin are not followed; proxies from the environment are used as everywhere else. Compressed responses
    are refused, because a small one may expand to gigabytes.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, inner: Any, limit: int) -> None:
            self._inner, self._left = inner, limit

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self._inner:
                self._left -= len(chunk)
                if self._left < 0:
                    raise httpx2.StreamError("the answer is too long")
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    class BoundedTransport(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            response = await super().handle_async_request(request)
            if response.status_code == _UNAUTHORIZED:
                on_refused()
            if response.headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
                await response.aclose()
                raise httpx2.RemoteProtocolError("its answer is compressed, which was not requested")
            events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
            response.stream = Bounded(response.stream, MAX_STREAM_BYTES if events else MAX_ANSWER_BYTES)
            return response

    client = httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(_CONNECT_S, read=read_s),
        transport=BoundedTransport(),
        auth=auth,
    )
    async with client, streamable_http_client(url, http_client=client) as (read, write):
        yield read, write


# Pipes to an MCP server: the length of its lines is limited, and lines that are not messages are skipped.

# A model gets at most 24,000 characters of a result, without images.
MAX_LINE_BYTES: Final = 8 << 20
_END_S: Final = 2.0
# Slow down a server that sends without pause, so that reading it uses little CPU.
_BURST: Final = 500
_PAUSE_S: Final = 0.2
_MAX_ERROR_BYTES: Final = 2000


async def bounded_lines(stream: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield whole lines; skip a line longer than MAX_LINE_BYTES."""
    line, skipping = bytearray(), False
    async for chunk in stream:
        *ended, partial = chunk.split(b"\n")
        for part in ended:
            line += part
            if not skipping and len(line) <= MAX_LINE_BYTES:
                yield bytes(line)
            line, skipping = bytearray(), False
        line += partial
        if len(line) > MAX_LINE_BYTES:
            line, skipping = bytearray(), True


@asynccontextmanager
async def stdio_pipes(
    argv: tuple[str, ...], env: dict[str, str], folder: Path, errors: bytearray
) -> AsyncIterator[Any]:
    """Start a server and yield the (read, write) streams for an `mcp.ClientSession`; it ends with the block.

    `errors` receives the end of its stderr.
    Raises: OSError: it cannot be started.
    """
    from mcp import types
    from mcp.shared.message import SessionMessage

    process = await anyio.open_process(
        list(argv), cwd=folder, env=program_environment(env), stderr=subprocess.PIPE, start_new_session=True
    )
    to_session, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_session = anyio.create_memory_object_stream[Any](0)

    async def read() -> None:
        assert process.stdout is not None
        num_messages = 0
        async with to_session:
            async for line in bounded_lines(process.stdout):
                num_messages += 1
                if num_messages % _BURST == 0:
                    await anyio.sleep(_PAUSE_S)
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    continue  # not a message: servers print banners and logs by mistake
                await to_session.send(SessionMessage(message))

    async def write() -> None:
        assert process.stdin is not None
        async with from_session:
            async for message in from_session:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")

    async def quietly(work: Any) -> None:
        try:
            await work()
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            await to_session.aclose()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(quietly, read)
            tasks.start_soon(quietly, write)
            tasks.start_soon(_listen, process.stderr, errors)
            try:
                yield from_server, to_server
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
            for stream in (to_session, from_server, to_server, from_session):
                await stream.aclose()


async def _listen(stream: Any, errors: bytearray) -> None:
    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        async for chunk in stream:
            errors.extend(chunk)
            del errors[:-_MAX_ERROR_BYTES]


async def _end(process: Any) -> None:
    """Close stdin, wait briefly, then kill the process and its children."""
    from devices.child import kill_group

    if process.stdin is not None:
        await process.stdin.aclose()
    with anyio.move_on_after(_END_S):
        await process.wait()
    kill_group(process.pid)
    with anyio.move_on_after(_END_S):
        await process.wait()
    await process.aclose()
