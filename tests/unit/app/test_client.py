"""The client of the local server, on real sockets."""

import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from app.client import (
    ApiError,
    ChatResponse,
    Client,
    ServerUnreachable,
    ToolCalls,
    UnexpectedAnswer,
    answers,
    chat_client,
    discovery,
    running_server,
)
from engine.api.chat import (
    ChatChunk,
    ChunkChoice,
    Delta,
    FunctionDelta,
    LoadProgress,
    ToolCallDelta,
    Usage,
)
from engine.api.jobs import Job, Jobs
from engine.core.paths import user_paths
from engine.core.proof import proof
from tests.support.servers import wait_for
from tests.support.unhindered import Stopwatch

GONE = 2**22 + 1  # a process; more than a system gives to one
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text):
    return f"{len(text):x}\r\n{text}\r\n".encode()


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + chunk('data: {"n": 1}\n\n')])
def test_closing_ends_a_stream_that_waits_at_once_on_both_sides(sent):
    """At any point of a request: a window that closes, or a Stop while a long prompt is read, must not wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
        ended = []

        def read():
            with pytest.raises((ServerUnreachable, RuntimeError)):
                ended.extend(client.stream("/events", dict, {}))
            ended.append("end")

        reader = threading.Thread(target=read)
        reader.start()
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(60)
            while not peer.recv(65536).endswith(b"{}"):
                pass
            peer.sendall(sent)
            wait_for(lambda: bool(ended) == (b"data" in sent), what="what was sent")
            time.sleep(0.2)  # the reader is in its next read
            closed = Stopwatch()
            client.close()
            assert peer.recv(1) == b""
            reader.join(60)
            assert closed.seconds() < 2
    assert ended == [{"n": 1}, "end"] if b"data" in sent else ["end"]


@pytest.mark.parametrize("ends", [b"", chunk("data: {")])
def test_a_stream_that_breaks_off_is_no_end(ends):
    """If the server dies in the middle of an answer, the answer must not look complete."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def serve():
            peer, _ = listener.accept()
            with peer:
                while not peer.recv(65536).endswith(b"{}"):
                    pass
                peer.sendall(HEAD + chunk('data: {"n": 1}\n\n') + ends)

        server = threading.Thread(target=serve)
        server.start()
        with Client(address) as client:
            events = client.stream("/events", dict, {})
            assert next(events) == {"n": 1}
            with pytest.raises(ApiError):
                next(events)
        server.join()


def test_a_connection_the_server_gave_up_is_made_anew():
    """A connection that was idle for longer than the server keeps it open."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = threading.Event()

        def serve():
            for n in range(2):
                peer, _ = listener.accept()
                with peer:
                    peer.recv(65536)
                    peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + str(n).encode())
                gone.set()

        server = threading.Thread(target=serve)
        server.start()
        with Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            assert client.get("/n", int) == 0
            assert gone.wait(60)
            assert client.get("/n", int) == 1
        server.join()


class Told(BaseHTTPRequestHandler):
    """Echoes the request line; `/jobs` streams jobs, `/answer` an answer that breaks off."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path.startswith("/health?challenge="):
            assert self.headers["authorization"] is None
            raw = json.dumps({"proof": proof("new", self.path.partition("=")[2])}).encode()
        elif self.path == "/health":
            raw = b"{}"
        elif self.path == "/jobs":
            raw = b'event: job\ndata: {"id": "a", "error": {"message": "no"}}\n\nevent: job\ndata: {"id": "b"}\n\n'
        elif self.path == "/answer":
            raw = b'event: job\ndata: {"id": "a"}\n\ndata: {"error": {"message": "it broke", "code": "broken"}}\n\n'
        else:
            raw = json.dumps({"path": self.path}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        pass


@pytest.fixture
def told():
    with ThreadingHTTPServer(("127.0.0.1", 0), Told) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_query_in_the_path_is_sent(told):
    with Client(told) as client:
        assert client.get("/a?repo=b%2Fc&n=1", dict) == {"path": "/a?repo=b%2Fc&n=1"}
        assert client.get("/a", dict, repo="b/c")["path"] in {"/a?repo=b%2Fc", "/a?repo=b/c"}
        assert client.get("/a", dict) == {"path": "/a"}


def test_a_failed_job_is_told_and_a_broken_answer_is_raised(told):
    with Client(told) as client:
        assert [job["id"] for job in client.stream("/jobs", dict)] == ["a", "b"]
        with pytest.raises(ApiError, match="it broke"):
            list(client.stream("/answer", dict))


def test_the_file_of_a_server_whose_token_is_no_longer_good_is_not_believed(told, tessera_home):
    file = user_paths().server_file
    file.parent.mkdir(parents=True)
    for token, believed in (("old", False), ("new", True)):
        file.write_text(json.dumps({"url": told, "token": token, "pid": 1}))
        found = running_server()
        assert (found is not None) == believed
        if found is not None:
            found.close()


def test_an_answer_of_another_shape_is_named(told):
    """A server of a different version must not look like a bug of the window."""
    with Client(told) as client:
        with pytest.raises(UnexpectedAnswer, match=r"/a is not understood .*required field `jobs`"):
            client.get("/a", Jobs)
        with pytest.raises(UnexpectedAnswer, match="/jobs is not understood"):
            list(client.stream("/jobs", Job))


def test_pieces_of_calls_are_put_together_by_their_index():
    def piece(index, name=None, arguments=None, call_id=None):
        return ToolCallDelta(index=index, id=call_id, function=FunctionDelta(name=name, arguments=arguments))

    found = ToolCalls()
    found.take([piece(0, "look_up", "", "c1"), piece(1, "add", '{"a"', "c2")])
    found.take([piece(0, arguments='{"city": "Bern"}'), piece(1, arguments=": 1}")])
    found.take([piece(None, "last", "{}"), piece(99, "odd", "{}")])
    assert [(call.id, call.name, call.arguments) for call in found.calls] == [
        ("c1", "look_up", '{"city": "Bern"}'),
        ("c2", "add", '{"a": 1}'),
        ("", "last", "{}"),
        ("", "odd", "{}"),
    ]


def test_the_pieces_of_an_answer_become_the_whole():
    chunks = [
        ChatChunk(load_progress=LoadProgress(fraction=0.5)),
        ChatChunk(choices=(ChunkChoice(delta=Delta(role="assistant")),)),
        ChatChunk(choices=(ChunkChoice(delta=Delta(reasoning_content="Hm. ")),)),
        ChatChunk(choices=(ChunkChoice(delta=Delta(content="Yes")),)),
        ChatChunk(choices=(ChunkChoice(finish_reason="stop"),)),
        ChatChunk(usage=Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5)),
    ]
    whole, phases = ChatResponse(), []
    for piece in answers(chunks):
        whole.take(piece)
        phases.append(whole.phase.name)
    assert (whole.content, whole.reasoning, whole.facts().finish_reason) == ("Yes", "Hm. ", "stop")
    assert list(dict.fromkeys(phases)) == ["loading", "reading", "thinking", "writing"]
    assert whole.facts().usage.total_tokens == 5
    assert not whole.facts().tool_calls


class Impostor(BaseHTTPRequestHandler):
    """Answers every request successfully, or not at all; `server.seen` has the requests."""

    protocol_version = "HTTP/1.1"
    status = 200

    def do_GET(self):
        sent = self.rfile.read(int(self.headers["content-length"] or 0))
        self.server.seen.append((self.command, self.path, self.headers["authorization"], sent))
        body = {"status": "ok", "version": "1", "proof": "0" * 64, "data": [], "aliases": {}}
        raw = json.dumps(body).encode() if self.status == 200 else b"<!DOCTYPE HTML>"
        self.send_response(self.status)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("status", [200, 401, 404])
def test_whoever_listens_where_a_server_was_gets_neither_token_nor_question(tessera_home, monkeypatch, status):
    """If the server's process is gone, it gets no request; if its process id was reused, it gets no token."""
    monkeypatch.setattr(Impostor, "status", status)
    file = user_paths().server_file
    file.parent.mkdir(parents=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), Impostor) as impostor:
        impostor.seen = []
        thread = threading.Thread(target=impostor.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{impostor.server_port}"
        file.write_text(json.dumps({"url": url, "token": "secret", "pid": GONE}))
        assert running_server() is None
        assert impostor.seen == []
        file.write_text(json.dumps({"url": url, "token": "secret", "pid": os.getpid()}))
        assert running_server() is None
        with Client(url, "secret", local=True) as client:  # one that was there before the server crashed
            assert not client.healthy()
            for ask in (client.chat_models, lambda: list(client.chat("m", [{"role": "user", "content": "4711"}]))):
                with pytest.raises(ServerUnreachable, match="another program"):
                    ask()
        assert len(impostor.seen) == 4
        for command, path, authorization, sent in impostor.seen:
            assert (command, path.partition("=")[0], authorization, sent) == ("GET", "/health?challenge", None, b"")
        impostor.shutdown()
        thread.join()


def test_what_took_the_port_of_a_server_that_crashed_and_says_nothing_is_not_waited_for(tessera_home):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        known = {"url": f"http://127.0.0.1:{silent.getsockname()[1]}", "token": "t", "pid": GONE}
        file = user_paths().server_file
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(known))
        begun = Stopwatch()
        assert running_server() is None
        assert begun.seconds() < discovery.FIRST_S / 2


@pytest.mark.parametrize("moves", [True, False])
def test_a_load_is_waited_for_as_long_as_it_makes_progress(monkeypatch, moves):
    looks = []
    answered = threading.Event()

    class Loading(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            looks.append(self.path)
            if moves and len(looks) == 6:
                answered.set()
            row = {"id": "m", "state": "loading", "phase": "weights", "progress": len(looks) / 10 if moves else 0}
            self.give({"models": [row]})

        def do_POST(self):
            assert answered.wait(60)
            self.give({"id": "m", "state": "loaded"})

        def give(self, answer):
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    monkeypatch.setattr(chat_client, "LOOK_S", 0.2)
    monkeypatch.setattr(chat_client, "READ_S", 0.5)  # six checks take 1.2 s
    server = ThreadingHTTPServer(("127.0.0.1", 0), Loading)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with Client(f"http://127.0.0.1:{server.server_port}") as client:
            if moves:
                assert client.load("m").state == "loaded"
            else:
                with pytest.raises(ServerUnreachable, match="no progress"):
                    client.load("m")
    finally:
        answered.set()
        server.shutdown()
        thread.join()
        server.server_close()
    assert set(looks) == {"/tessera/v1/loaded"}
