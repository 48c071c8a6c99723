"""The client for upstreams runs on loops whose transports are no `asyncio.Transport` by class, such as uvloop's."""

from engine.upstreams.http import Connection


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
