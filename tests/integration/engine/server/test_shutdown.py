"""The server shuts down immediately if no client waits for a response."""

import asyncio
import socket
import time

import pytest
import uvicorn

from engine.server.build_server import _Server

GRACE_S = 5


async def _app(scope, receive, send):
    while scope["type"] == "lifespan":
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _ends_within(turns: int) -> float:
    """Shutdown time in seconds, with a connection that was accepted this many event-loop iterations ago."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(_app, log_config=None, lifespan="on", timeout_graceful_shutdown=GRACE_S)
    config.load()
    server = _Server(config, None, "", "", private=False, end_following=lambda: None)
    server.lifespan = config.lifespan_class(config)
    await server.startup([listening])
    with socket.create_connection(listening.getsockname()):
        for _ in range(turns):
            await asyncio.sleep(0)
        began = time.monotonic()
        await server.shutdown([listening])
        return time.monotonic() - began


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_comes_as_the_server_ends_holds_nothing_up(turns):
    assert asyncio.run(_ends_within(turns)) < GRACE_S
