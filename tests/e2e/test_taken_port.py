"""A server is killed and another program takes its port: the terminal's next request is not sent to it."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from app.client import Client, ServerUnreachable
from tests.support.servers import ROOT, RunningServer

pytestmark = pytest.mark.e2e


class Impostor(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.path, self.headers["authorization"]))
        raw = b'{"data": [{"id": "spark", "capabilities": ["chat"], "default": true}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_):
        pass


def test_a_question_after_a_crash_is_answered_by_a_server_of_ones_own(tmp_path):
    server = RunningServer(tmp_path)
    with Client(server.url, server.token, server.process.pid, local=True) as client:
        assert client.healthy()
        assert [model.id for model in client.chat_models()]
        server.process.kill()
        server.process.wait()
        port = int(server.url.rpartition(":")[2])
        with ThreadingHTTPServer(("127.0.0.1", port), Impostor) as impostor:
            impostor.seen = []
            thread = threading.Thread(target=impostor.serve_forever, args=(0.01,))
            thread.start()
            try:
                command = [sys.executable, "-m", "app", "chat", "spark", "-p", "my secret is 4711"]
                done = subprocess.run(
                    command, cwd=ROOT, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                    env={**os.environ, "TESSERA_HOME": str(tmp_path)},
                )  # fmt: skip
                assert done.returncode == 0, done.stderr
                assert impostor.seen == []
                with pytest.raises(ServerUnreachable, match="another program"):
                    client.chat_models()  # a client that had been connected
                assert [authorization for _, authorization in impostor.seen] == [None]
            finally:
                impostor.shutdown()
                thread.join()
