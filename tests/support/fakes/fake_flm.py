"""A fake of FastFlowLM's program: version, validate, list, and a server with recorded response shapes.

FLM_FAKE selects a failure: `not-ready`, `dies` (at start), `crash` (during a response to a request with the word
crash; with the word hangup only the connection is lost), `deaf` (never responds), `slow`, `huge` (a model larger
than any memory).
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = os.environ.get("FLM_FAKE", "")
# Recorded by users of 0.9.46 and 1.0.5 with `flm list --filter installed --json` and `flm validate --json`,
# shortened.
INSTALLED = [
    {
        "default_context_length": 131072,
        "details": {"family": "llama3", "parameter_size": "1B", "quantization_level": "Q4_1", "think": False},
        "flm_min_version": "0.9.21",
        "footprint": 1.3,
        "installed": True,
        "max_prefill_len": 512,
        "model": "llama3.2:1b",
        "name": "llama3.2:1b",
        "size": 1000000000,
    },
    {
        "default_context_length": 32768,
        "details": {
            "family": "qwen3.5",
            "format": "NPU2",
            "parameter_size": "2B",
            "quantization_level": "Q4_1",
            "think": True,
        },
        "flm_min_version": "0.9.37",
        "footprint": 900 if MODE == "huge" else 3.2,
        "installed": True,
        "label": ["vision", "reasoning", "tool-calling"],
        "model": "qwen3.5:2b",
        "name": "qwen3.5:2b",
        "size": 2000000000,
        "vlm": True,
    },
    {
        "name": "whisper-v3:turbo",
        "model": "whisper-v3:turbo",
        "installed": True,
        "size": 1000000000,
        "footprint": 0.62,
    },
]
TAGS = [model["name"] for model in INSTALLED]
VALIDATED = {
    "all_fw_ok": True,
    "amd_device_found": True,
    "devices": [{"cols": 8, "device": "/dev/accel/accel0", "fw_major": 1, "fw_minor": 1, "fw_ok": True}],
    "enough_cols": True,
    "kernel": "7.2.5",
    "kernel_ok": True,
    "memlock_limit": "infinity",
    "memlock_ok": True,
    "object": "npu_stack_validation",
    "platform": "linux",
    "ready": True,
}
NOT_READY = {"amd_device_found": False, "devices": [], "memlock_ok": False, "ready": False}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a response is two writes

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
            time.sleep(3600)  # the real program hangs on unknown tags
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
        print(json.dumps(VALIDATED | (NOT_READY if MODE == "not-ready" else {})))
        return int(MODE == "not-ready")
    elif arguments[0] == "list":
        print(json.dumps({"models": INSTALLED}))
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
