"""The way to an MCP server over streamable HTTP: what it answers is bounded, and stays with its own address."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

# One answer; longer than the longest line that is taken from a server over its standard output.
MAX_ANSWER_BYTES: Final = 8 << 20
# What may come over one stream of events in the life of a connection.
MAX_STREAM_BYTES: Final = 256 << 20
_CONNECT_S: Final = 15.0


@asynccontextmanager
async def http_pipes(url: str, headers: Mapping[str, str], read_s: float) -> AsyncIterator[Any]:
    """The (read, write) streams that an `mcp.ClientSession` takes. `read_s`: the longest silence of an answer.

    Redirects to another origin are not followed, and proxies of the environment are used as for everything else.
    """
    import httpx2  # noqa: PLC0415 - with its only use
    from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 - costs 0.4 s to import

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
            events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
            response.stream = Bounded(response.stream, MAX_STREAM_BYTES if events else MAX_ANSWER_BYTES)
            return response

    client = httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},  # a small packed answer may unpack to gigabytes
        timeout=httpx2.Timeout(_CONNECT_S, read=read_s),
        transport=BoundedTransport(),
    )
    async with client, streamable_http_client(url, http_client=client) as (read, write):
        yield read, write
