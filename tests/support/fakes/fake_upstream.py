"""A fake OpenAI-compatible server with the response and error shapes of vLLM and SGLang.

The shapes follow published recordings of vLLM 0.23 to 0.29 and of SGLang from 2025 and 2026, field by field, and
the projects' issue threads: vLLM streams reasoning as `delta.reasoning`, SGLang as `delta.reasoning_content` among
fields that are null. The last message of a request selects a failure.
"""

import contextlib
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "Qwen/Qwen3-8B"
LISTS = {
    "vllm": {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "root": MODEL, "parent": None,
             "max_model_len": 40960, "permission": []},
    "sglang": {"id": MODEL, "object": "model", "created": 1, "owned_by": "sglang", "root": MODEL, "parent": None,
               "max_model_len": 40960},
    "openai": {"id": MODEL, "object": "model", "created": 1, "owned_by": "somebody"},
}  # fmt: skip
TOO_LONG = {
    "vllm": {
        "object": "error",
        "message": "This model's maximum context length is 40960 tokens. However, you requested 50005 tokens "
        "(49993 in the messages, 12 in the completion). Please reduce the length of the messages or completion.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    "sglang": {
        "object": "error",
        "message": "The input (50005 tokens) is longer than the model's context length (40960 tokens).",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    "openai": {"error": {"message": "context_length_exceeded", "type": "invalid_request_error", "code": 400}},
}


class FakeUpstream:
    """Runs on a free port. `seen` are the request bodies; `hung_up` counts responses that a client aborted."""

    def __init__(self, kind="vllm", key=None, delay_s=0.0, listen=("127.0.0.1", 0)):
        self.kind, self.key, self.delay_s = kind, key, delay_s
        self.seen, self.keys, self.hung_up = [], [], 0
        self.rows = [LISTS[kind]]  # its model list
        self.turns = None  # a semaphore: one word is sent per release
        self.connections = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # a response is two writes

            def log_message(self, *_):
                pass

            def do_GET(self):
                if outer.refuses(self):
                    return
                outer.json(self, {"object": "list", "data": outer.rows})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if outer.refuses(self):
                    return
                outer.seen.append((self.path, body))
                outer.answer(self, body)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def process_request(self, request, client_address):
                outer.connections.append(request)
                super().process_request(request, client_address)

            def handle_error(self, request, client_address):
                """Ignore clients that disconnect: some tests do that on purpose."""

        self.server = Server(listen, Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()
        for connection in self.connections:  # like the end of a process
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def refuses(self, request):
        told = request.headers.get("authorization")
        self.keys.append(told)
        if self.key is not None and told != f"Bearer {self.key}":
            self.json(request, {"error": "Unauthorized"}, 401)
            return True
        return False

    @staticmethod
    def json(request, value, code=200):
        body = json.dumps(value).encode()
        request.send_response(code)
        request.send_header("content-type", "application/json")
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def answer(self, request, body):
        if request.path == "/v1/embeddings":
            rows = [{"index": i, "embedding": [float(i), 0.5, -1.0]} for i in range(len(body["input"]))]
            self.json(request, {"data": rows[::-1], "usage": {"prompt_tokens": 9}})
            return
        if request.path == "/v1/rerank":
            rows = [{"index": i, "relevance_score": 1 / (1 + i)} for i in range(len(body["documents"]))]
            self.json(request, {"results": rows, "usage": {"prompt_tokens": 9}})
            return
        if request.path == "/tokenize":
            self.json(request, {"count": 3, "max_model_len": 40960, "tokens": [1, 2, 3]})
            return
        said = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        said = said if isinstance(said, str) else json.dumps(said)
        if body["model"] not in {row["id"] for row in self.rows}:
            self.json(request, {"object": "error", "message": "The model `x` does not exist.", "code": 404}, 404)
        elif "too long" in said:
            self.json(request, TOO_LONG[self.kind], 400)
        elif "overloaded" in said:
            self.json(request, {"error": {"message": "queue full", "type": "rate_limit", "code": 429}}, 429)
        elif "broken" in said:
            self.json(request, {"detail": "EngineCore died"}, 500)
        else:
            self.stream(request, body, said)

    def chunk(self, delta, finish=None, **extra):
        if self.kind == "sglang":  # all fields, most of them null
            delta = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None, **delta}
            extra = {"usage": None, **extra}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        if self.kind == "sglang":  # the token id or text of a stop
            choice |= {"matched_stop": 151645 if finish == "stop" else None}
        elif self.kind == "vllm":
            first = delta.get("role") is not None
            extra = {"prompt_token_ids": None, "prompt_text": None, **extra} if first else extra
            choice |= {} if first else {"token_ids": None}
            choice |= {"stop_reason": None} if finish else {}
            delta |= {"content": ""} if finish and not delta else {}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        return {**head, "choices": [choice], **extra}

    def stream(self, request, body, said):
        request.send_response(200)
        request.send_header("content-type", "text/event-stream; charset=utf-8")
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        count = 0

        def send(data):
            piece = data if isinstance(data, bytes) else f"data: {json.dumps(data)}\n\n".encode()
            try:
                request.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                request.wfile.flush()
            except OSError:
                self.hung_up += 1
                raise

        try:
            if request.path == "/v1/completions":
                for word in ("once ", "upon ", "a time"):
                    send(
                        {
                            "object": "text_completion",
                            "choices": [{"index": 0, "text": word, "finish_reason": None}],
                        }
                    )
                    count += 1
                send({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
            else:
                count = self.talk(send, body, said)
            usage = {"prompt_tokens": 11, "total_tokens": 11 + count, "completion_tokens": count}
            told = {"vllm": {"system_fingerprint": "vllm-0.26.0-77852039"}, "sglang": {"metadata": {}}}
            usage |= {"reasoning_tokens": 0} if self.kind == "sglang" else {}
            usage |= {"prompt_tokens_details": {"cached_tokens": 4}}
            send({"choices": [], "usage": usage, **told.get(self.kind, {})})
            send(b"data: [DONE]\n\n")
            request.wfile.write(b"0\r\n\r\n")
        except OSError:
            request.close_connection = True

    def talk(self, send, body, said):
        reasoning = "reasoning" if self.kind == "vllm" else "reasoning_content"
        send(self.chunk({"role": "assistant", "content": ""}))
        if "think" in said:
            send(self.chunk({reasoning: "Hmm"}))
            send(self.chunk({reasoning: ", well."}))
        if body.get("tools") and "weather" in said:
            return self.call(send)
        words = ["Hello", " from", " up", " there"] if "forever" not in said else [f" {i}" for i in range(2000)]
        if said.startswith("echo "):
            words = [said[i : i + 7] for i in range(5, len(said), 7)]
        for n, word in enumerate(words):
            if n == 2 and "cut" in said:
                raise OSError("hang up in the middle")
            if n == 2 and "dies" in said:
                send({"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError"}})
                return n
            if n == 2 and "garbage" in said:
                send(b"data: {not json\n\n")
            if self.turns is not None:
                self.turns.acquire(timeout=60)
            send(self.chunk({"content": word}))
            if self.delay_s or "forever" in said:
                time.sleep(self.delay_s or 0.01)
        send(self.chunk({}, "length" if "short" in said else "stop"))
        return len(words)

    def call(self, send):
        name = {"id": "call_7", "type": "function", "index": 0, "function": {"name": "weather", "arguments": ""}}
        send(self.chunk({"tool_calls": [name]}))
        for part in ('{"city": ', '"Oslo"}'):
            send(self.chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}))
        send(self.chunk({}, "tool_calls"))
        return 3
