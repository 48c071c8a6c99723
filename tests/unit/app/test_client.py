"""The client of the local server, on real sockets."""

import socket
import threading
import time

import pytest

from app.client import Client, ServerUnreachable

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text):
    return f"{len(text):x}\r\n{text}\r\n".encode()


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + chunk('data: {"n": 1}\n\n')])
def test_closing_ends_a_stream_that_waits_at_once_on_both_sides(sent):
    """However far the server got: a window that closes, or a Stop while a long prompt is read, must not wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
        ended = []

        def read():
            with pytest.raises((ServerUnreachable, RuntimeError)):
                ended.extend(client.events("/events", {}))
            ended.append("end")

        reader = threading.Thread(target=read)
        reader.start()
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(5)
            while not peer.recv(65536).endswith(b"{}"):
                pass
            peer.sendall(sent)
            time.sleep(0.2)  # the reader is in its next read
            closed = time.monotonic()
            client.close()
            assert peer.recv(1) == b""
            reader.join(5)
            assert time.monotonic() - closed < 2
    assert ended == [{"n": 1}, "end"] if b"data" in sent else ["end"]
