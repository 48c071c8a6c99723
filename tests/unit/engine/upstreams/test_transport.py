"""The client for upstreams: which connections are reused, and event loops with transports of another class."""

import asyncio

import pytest

from engine.upstreams import http
from engine.upstreams.errors import UpstreamBrokeOff
from engine.upstreams.http import Connection, HttpClient

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"


class Server:
    """Sends the same bytes for every request, and counts connections."""

    def __init__(self, answer, *, hangs_up=False):
        self.answer, self.hangs_up, self.connections = answer, hangs_up, 0

    def connected(self):
        self.connections += 1
        return _Answering(self)

    async def ask(self, times, *, leave=False):
        """Bodies of this many consecutive requests."""
        bodies = []
        async with await asyncio.get_running_loop().create_server(self.connected, "127.0.0.1", 0) as listening:
            client = HttpClient("up", f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
            for _ in range(times):
                async with client.request("GET", "/") as answer:
                    if not leave:
                        bodies.append(await answer.read())
                # the other side's actions after its response, in several iterations of the loop
                for _ in range(20):
                    await asyncio.sleep(0.002)
            client.close()
            await asyncio.sleep(0.02)
        return bodies


class _Answering(asyncio.Protocol):
    def __init__(self, server):
        self.server = server

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        assert data.endswith(b"\r\n\r\n")
        self.transport.write(self.server.answer)
        if self.server.hangs_up:
            self.transport.close()


HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "interim", [HINTS, HINTS * 3, b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 102 P\r\n\r\n" + HINTS]
)
@pytest.mark.parametrize("answer", [CHUNKED, SIZED], ids=["chunked", "sized"])
def test_interim_responses_are_skipped(interim, answer):
    server = Server(interim + answer)
    assert asyncio.run(server.ask(2)) == [b"hello"] * 2
    assert server.connections == 1


def test_interim_responses_without_end_are_refused():
    with pytest.raises(UpstreamBrokeOff, match="21 interim"):
        asyncio.run(Server(HINTS * 1000).ask(1))


@pytest.mark.parametrize("answer", [CHUNKED, SIZED], ids=["chunked", "sized"])
def test_a_connection_serves_again(answer):
    server = Server(answer)
    assert asyncio.run(server.ask(4)) == [b"hello"] * 4
    assert server.connections == 1


@pytest.mark.parametrize(
    "server",
    [Server(CLOSING), Server(SIZED, hangs_up=True), Server(SIZED + SIZED.replace(b"hello", b"other"))],
    ids=["it says so", "it hangs up", "more came than was asked for"],
)
def test_a_connection_that_does_not(server):
    assert asyncio.run(server.ask(3)) == [b"hello"] * 3
    assert server.connections == 3


def test_one_that_was_idle_for_long_does_not(monkeypatch):
    monkeypatch.setattr(http, "IDLE_S", 0.0)
    server = Server(SIZED)
    assert asyncio.run(server.ask(3)) == [b"hello"] * 3
    assert server.connections == 3


def test_one_whose_answer_was_left_does_not():
    server = Server(CHUNKED.replace(b"0\r\n\r\n", b""))
    asyncio.run(server.ask(3, leave=True))
    assert server.connections == 3


class OtherLoopsTransport:
    def __init__(self):
        self.written = b""

    def write(self, data):
        self.written += data

    def abort(self):
        self.written = b""


def test_a_transport_of_another_kind_is_taken():
    transport, connection = OtherLoopsTransport(), Connection()
    connection.connection_made(transport)
    connection.send(b"GET / HTTP/1.1\r\n\r\n")
    assert transport.written == b"GET / HTTP/1.1\r\n\r\n"
