"""FastFlowLM's program as far as Tessera speaks to it: version, validate, list, and a server of the recorded shape.

FLM_FAKE says what goes wrong: `not-ready`, `dies` (at start), `crash` (in the middle of an answer that holds the
word crash; one with the word hangup only loses its connection), `deaf` (never answers), `slow`.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = os.environ.get("FLM_FAKE", "")
TAGS = ["llama3.2:1b", "qwen3:0.6b"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value, code=200):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/api/tags":
            self.answer({"models": [{"name": tag, "model": tag} for tag in TAGS]})
        else:
            self.answer({"error": "no such route"}, 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["model"] not in TAGS:
            time.sleep(3600)  # the real one hangs on unknown tags
        said = body["messages"][-1]["content"]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        words = f"NPU says: {said}".split(" ")[: body.get("max_tokens", 100)]
        for n, word in enumerate(words):
            if word == "crash":
                print("xrt: firmware timed out", flush=True)
                os._exit(134)
            if word == "hangup":
                self.close_connection = True
                return
            if "slow" in said:
                time.sleep(0.05)
            piece = {
                "choices": [{"index": 0, "delta": {"content": f" {word}" if n else word}, "finish_reason": None}]
            }
            self.wfile.write(f"data: {json.dumps({'object': 'chat.completion.chunk', **piece})}\n\n".encode())
            self.wfile.flush()
        end = {
            "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": len(words), "total_tokens": 7 + len(words)},
        }
        self.wfile.write(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())


def main(arguments):
    if arguments[0] == "version":
        print("FLM v0.9.46")
    elif arguments[0] == "validate":
        print(json.dumps({"ready": MODE != "not-ready", "amd_device_found": True}))
    elif arguments[0] == "list":
        print(json.dumps({"models": [{"name": tag, "installed": True} for tag in TAGS]}))
    elif arguments[0] == "serve":
        if MODE == "dies":
            print("[ERROR] No NPU device found.", flush=True)
            return 1
        if MODE == "deaf":
            time.sleep(3600)
        options = dict(zip(arguments[2::2], arguments[3::2], strict=True))
        assert options["--host"] == "127.0.0.1"
        ThreadingHTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
