"""A real HTTP server on loopback with the routes that the window uses, and responses that a test sets."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from app.client import Client
from app.gui.server_link import ServerLink
from devices.types import SystemMemory
from engine.api.chat import (
    ChatChunk,
    ChunkChoice,
    Delta,
    ModelList,
    ModelRow,
    Runaway,
    TesseraFields,
    Timings,
    ToolCallDelta,
    Usage,
)
from engine.api.hub import Starters
from engine.api.library import Models
from engine.api.machine import Machine


def machine(**known):
    """A computer with minimal facts."""
    known = {"memory": SystemMemory(), "devices": (), **known}
    return Machine(system="unknown", kernel="", arch="", environment="", product="", **known)


class FakeServer:
    """`pieces` are streamed for every chat, `pause_s` apart; `routes` answer GET and POST by path."""

    def __init__(self):
        self.pieces = ["Hello", " **world**"]
        self.reasoning = []
        self.pause_s = 0.0
        self.error = None
        self.end_early = False
        self.tool_calls = []
        self.runaway = None
        self.models = [
            ModelRow(
                id="spark", name="Spark (demo)", context_length=1024, capabilities=("chat",), origin="bundled",
                demo=True, default=True,
            )
        ]  # fmt: skip
        self.routes = {}
        self.bodies = []
        self.requests = []
        self.hold = threading.Event()
        self.hold.set()
        self.disconnects = 0

    def __enter__(self):
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # an answer is two writes

            def log_message(self, *args):
                pass

            def do_GET(self):
                fake.answer(self, "GET")

            def do_POST(self):
                fake.answer(self, "POST")

            def do_PUT(self):
                fake.answer(self, "PUT")

            def do_DELETE(self):
                fake.answer(self, "DELETE")

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = False
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self.api = ServerLink()
        self.api._client = Client(self.url, "token")
        return self

    def __exit__(self, *_):
        self.hold.set()
        self.api.disconnect()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(60)

    def answer(self, handler, method):
        path = handler.path.split("?")[0]
        length = int(handler.headers.get("content-length") or 0)
        body = json.loads(handler.rfile.read(length)) if length else None
        self.requests.append((method, handler.path, body))
        if path == "/v1/chat/completions":
            self.bodies.append(body)
            self._chat(handler)
        elif path == "/health":
            self._send(handler, 200, Health())
        elif path == "/v1/models":
            self._send(handler, 200, ModelList(data=tuple(self.models)))
        elif (method, path) in self.routes:
            answer = self.routes[method, path]
            answer = answer(body) if callable(answer) else answer
            if isinstance(answer, Events):
                self._stream(handler, answer.items)
            else:
                self._send(handler, *answer) if isinstance(answer, tuple) else self._send(handler, 200, answer)
        else:
            self._send(handler, 404, {"error": {"message": f"no route {path}", "code": "not_found"}})

    def _send(self, handler, status, document):
        """A success is a struct of the contract, so that a test's response is one that a server could send."""
        assert status >= 204 or isinstance(document, msgspec.Struct), document
        raw = b"" if document is None else msgspec.json.encode(document)
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(raw)))
        try:
            handler.end_headers()
            handler.wfile.write(raw)
        except OSError:
            self.disconnects += 1

    def _stream(self, handler, items):
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.close_connection = True
        try:
            for item in items:
                handler.wfile.write(b"data: " + msgspec.json.encode(item) + b"\n\n")
                handler.wfile.flush()
                if self.pause_s:
                    time.sleep(self.pause_s)
                self.hold.wait(300)  # until the test releases it, or ends
        except OSError:
            self.disconnects += 1
            return False
        return True

    def _chat(self, handler):
        if self.error is not None and not self.end_early:
            self._send(handler, 400, {"error": self.error})
            return
        deltas = [Delta(content="")]
        deltas += [Delta(reasoning_content=text) for text in self.reasoning]
        deltas += [Delta(content=text) for text in self.pieces]
        deltas += [Delta(tool_calls=(msgspec.convert(call, ToolCallDelta),)) for call in self.tool_calls]
        chunks = [ChatChunk(choices=(ChunkChoice(delta=delta),)) for delta in deltas]
        if self.end_early:
            chunks.append({"error": self.error or {"message": "the model's process died", "code": "runner_died"}})
        else:
            found = TesseraFields(runaway=(msgspec.convert(self.runaway, Runaway),)) if self.runaway else None
            reason = "length" if self.runaway else "stop"
            chunks.append(ChatChunk(choices=(ChunkChoice(finish_reason=reason),), tessera=found))
            usage = Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15)
            chunks.append(ChatChunk(usage=usage, timings=Timings(ttft_s=0.02, tok_s=123.4)))
        self._stream(handler, chunks)


class Events:
    """A response that is a stream of server-sent events."""

    def __init__(self, items):
        self.items = items


class Health(msgspec.Struct):
    status: str = "ok"


# The responses of a server without models.
EMPTY = {
    "/tessera/v1/models": Models(models=()),
    "/tessera/v1/jobs/events": Events([]),
    "/tessera/v1/devices": machine(),
    "/tessera/v1/hub/starters": Starters(proposals=()),
}
