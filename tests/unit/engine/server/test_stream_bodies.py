"""How the parts of a stream pass the middleware."""

import asyncio
from types import SimpleNamespace

from starlette.applications import Starlette
from starlette.routing import Route

from engine.core.request_timing import TimeLog
from engine.server.metrics import Metrics
from engine.server.middleware import ErrorMiddleware, RequestLog
from engine.server.openai.errors import STREAM_SHAPE
from engine.server.recent import RecentRequests
from engine.server.sse import EventStream

PARTS = [b"data: %d\n\n" % i for i in range(50)]


async def chunks():
    for part in PARTS:
        yield part


class Counted:
    """A middleware that counts what passes it."""

    def __init__(self, app):
        self.app, self.passed = app, []

    async def __call__(self, scope, receive, send):
        async def sending(message):
            self.passed.append(message["type"])
            await send(message)

        await self.app(scope, receive, sending)


def test_a_stream_skips_the_middleware_after_its_start_and_every_byte_is_counted():
    """Each function on the way costs CPU time for every token."""
    routes = [Route("/v1/completions", lambda _request: EventStream(chunks(), STREAM_SHAPE), methods=["POST"])]
    counted, recent, sent = Counted(Starlette(routes=routes)), RecentRequests(), []
    app = RequestLog(ErrorMiddleware(counted), Metrics, TimeLog(), recent)
    connected = asyncio.Event()

    async def receive():
        await connected.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"", "query_string": b"",
        "root_path": "", "headers": [], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "scheme": "http",
        "http_version": "1.1", "app": SimpleNamespace(),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    assert body == b"".join(PARTS)
    assert sent[0]["type"] == "http.response.start"
    assert not sent[-1]["more_body"]
    assert counted.passed == ["http.response.start", "http.response.body"]  # the start and the end
    assert recent.snapshot().requests[0].sent_bytes == len(body)
