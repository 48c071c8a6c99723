"""The pipes to an MCP server: what it writes is bounded a line at a time, and what is no message is passed over."""

import contextlib
import subprocess
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio

from devices.environment import program_environment

# A result of 24,000 characters is shown to a model; pictures and the like are left out of it anyway.
MAX_LINE_BYTES: Final = 8 << 20
_END_S: Final = 2.0
# A server that talks without end is slowed down, so that reading it costs little of a processor.
_BURST: Final = 500
_PAUSE_S: Final = 0.2
_MAX_ERROR_BYTES: Final = 2000


async def bounded_lines(stream: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Whole lines; one longer than MAX_LINE_BYTES is passed over, and never held."""
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
    """Start a server and yield the (read, write) streams that an `mcp.ClientSession` takes; it ends with the block.

    `errors` gets the end of what it writes to its standard error.

    Raises: OSError: it cannot be started.
    """
    from mcp import types  # noqa: PLC0415 - costs 0.4 s to import
    from mcp.shared.message import SessionMessage  # noqa: PLC0415

    process = await anyio.open_process(
        list(argv), cwd=folder, env=program_environment(env), stderr=subprocess.PIPE, start_new_session=True
    )
    to_session, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_session = anyio.create_memory_object_stream[Any](0)

    async def read() -> None:
        assert process.stdout is not None
        taken = 0
        async with to_session:
            async for line in bounded_lines(process.stdout):
                taken += 1
                if taken % _BURST == 0:
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
    """Close its input, give it a moment, then end it and what it started."""
    from devices.backends.probe_child import kill_group  # noqa: PLC0415 - beside its only use

    if process.stdin is not None:
        await process.stdin.aclose()
    with anyio.move_on_after(_END_S):
        await process.wait()
    kill_group(process.pid)
    with anyio.move_on_after(_END_S):
        await process.wait()
    await process.aclose()
