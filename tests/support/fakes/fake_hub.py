"""A fake hub on loopback: the part of the Hugging Face API that huggingface-hub 2.4 calls, over real sockets.

Model info, model list with pages, resolve with a redirect to "storage" on another port, ETags, ranges, LFS sha256,
gated repositories, rate limits, and connections that are slow, stall or break, or serve wrong data.
"""

import contextlib
import hashlib
import json
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class FakeFile:
    """One file; `data` is bytes, or an object with a length that can be sliced like bytes."""

    data: object
    lfs: bool = True
    lie: object = None  # the content that is served, if not `data`

    def __post_init__(self):
        self.sha256 = hashlib.sha256(bytes(self.data)).hexdigest()
        self.git_sha1 = hashlib.sha1(b"blob %d\0" % len(self.data) + bytes(self.data)).hexdigest()


@dataclass
class FakeRepo:
    files: dict
    sha: str = "c" * 40
    gated: bool = False
    tags: tuple = ("gguf",)
    card: dict = field(default_factory=lambda: {"license": "apache-2.0"})
    gguf: dict = field(default_factory=dict)
    task: str = "text-generation"


@dataclass
class Faults:
    """Faults to inject. Counters decrease with each use."""

    delay_s: float = 0.0  # before every response: stands for a round trip
    bytes_per_s: float = 0.0  # of all connections together
    cut_after: list = field(default_factory=list)  # close the connection after this many body bytes
    stall_after: list = field(default_factory=list)  # send this many body bytes, then nothing for `stall_s`
    stall_s: float = 1.0
    too_many: int = 0  # number of 429 responses
    retry_after: str = "0"
    server_error: int = 0  # number of 503 responses
    ignore_ranges: bool = False
    endless: bool = False  # ranges are ignored, and zeros without end follow the file
    whole_below: int = 0  # ranges that start before this byte are ignored
    storage_down: bool = False


class FakeHub:
    """A fake hub: `with FakeHub() as hub:`, then use `hub.endpoint`; `requests` logs (method, path, headers)."""

    def __init__(self):
        self.repos = {}
        self.faults = Faults()
        self.requests = []
        self.body_bytes = Counter()  # sent bytes by path
        self.token = "hf_good"
        self.page = 100
        self.next_page_at = None  # URL of the list's second page, if on another host
        self._lock = threading.Lock()
        self._link_free_at = 0.0
        self._servers = []
        self.stopping = threading.Event()
        self.active = 0

    def __enter__(self):
        for kind in (_HubHandler, _StorageHandler):
            server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
            server.daemon_threads = True
            server.hub = self
            self._servers.append(server)
            threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        return self

    def __exit__(self, *exc):
        self.stopping.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def storage(self):
        return f"http://127.0.0.1:{self._servers[1].server_port}"

    def add(self, repo, files, **more):
        self.repos[repo] = FakeRepo(
            {n: d if isinstance(d, FakeFile) else FakeFile(d) for n, d in files.items()}, **more
        )
        return self.repos[repo]

    @property
    def sent_bytes(self):
        return sum(self.body_bytes.values())

    def settle(self):
        """Wait until no response is in progress, then clear the logs."""
        while self.active:
            time.sleep(0.01)
        self.body_bytes.clear()
        self.requests.clear()

    def count(self, path, num_bytes):
        with self._lock:
            self.body_bytes[path] += num_bytes

    def count_active(self, change):
        with self._lock:
            self.active += change

    def take(self, name):
        """Use up one of a counted fault; return it, or False if none is left."""
        with self._lock:
            left = getattr(self.faults, name)
            if not left:
                return False
            if isinstance(left, list):
                return left.pop(0)
            setattr(self.faults, name, left - 1)
            return True

    def pace(self, count):
        """Wait for the time that `count` bytes take on the shared connection."""
        if not self.faults.bytes_per_s:
            return
        with self._lock:
            # Compensate for a late wake-up of this process, like the buffers of a real network.
            begin = max(self._link_free_at, time.monotonic() - 0.05)
            self._link_free_at = begin + count / self.faults.bytes_per_s
            until = self._link_free_at
        self.stopping.wait(max(0.0, until - time.monotonic()))

    def find(self, path):
        """Repository name, repository and file of `/owner/name/resolve/revision/file`."""
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", unquote(urlsplit(path).path))
        repo = self.repos.get(match[1]) if match else None
        return (match[1], repo, repo.files.get(match[3])) if repo else (None, None, None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65536  # send head and body in one segment

    def finish(self):
        with contextlib.suppress(ConnectionError):
            super().finish()

    def log_message(self, *args):
        pass

    def handle_one_request(self):
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle_one_request()
            return
        self.close_connection = True

    @property
    def hub(self):
        return self.server.hub

    def begin(self):
        """Log, delay, and inject the faults that affect every request; True if a response was sent."""
        self.hub.requests.append((self.command, self.path, dict(self.headers)))
        time.sleep(self.hub.faults.delay_s)
        if self.hub.take("too_many"):
            return self.answer(429, b"", {"Retry-After": self.hub.faults.retry_after})
        if self.hub.take("server_error"):
            return self.answer(503, b"")
        return False

    def answer(self, status, body, headers=None):
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()
        return True

    def json(self, value, headers=None):
        return self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def do_HEAD(self):
        self.do_GET()


class _HubHandler(_Handler):
    def do_GET(self):
        if self.begin():
            return None
        path = urlsplit(self.path).path
        if path == "/api/models":
            return self.list_models()
        if path.startswith("/api/models/"):
            return self.model_info(unquote(path.removeprefix("/api/models/")))
        return self.resolve()

    def allowed(self, repo):
        if not repo.gated or self.headers.get("authorization") == f"Bearer {self.hub.token}":
            return True
        status = 403 if "authorization" in self.headers else 401
        self.answer(status, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        return False

    def model_info(self, rest):
        name, _, revision = rest.partition("/revision/")
        repo = self.hub.repos.get(name)
        if repo is None:
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if revision and revision not in {repo.sha, "main"}:
            return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if not self.allowed(repo):
            return None
        siblings = []
        for file_name, file in repo.files.items():
            sibling = {"rfilename": file_name, "size": len(file.data), "blobId": file.git_sha1}
            if file.lfs:
                sibling["lfs"] = {"sha256": file.sha256, "size": len(file.data), "pointerSize": 135}
            siblings.append(sibling)
        return self.json({**self.summary(name, repo), "sha": repo.sha, "cardData": repo.card, "siblings": siblings})

    @staticmethod
    def summary(name, repo):
        return {
            "id": name, "modelId": name, "gated": "manual" if repo.gated else False,
            "tags": [*repo.tags, f"license:{repo.card.get('license', 'other')}"],
            "downloads": 7, "likes": 3, "pipeline_tag": repo.task, "gguf": repo.gguf,
            "lastModified": "2026-05-01T10:00:00.000Z", "private": False,
        }  # fmt: skip

    def list_models(self):
        query = parse_qs(urlsplit(self.path).query)
        text = query.get("search", [""])[0].lower()
        tags = query.get("filter", [])
        task = query.get("pipeline_tag", [None])[0]
        found = [
            self.summary(name, repo)
            for name, repo in self.hub.repos.items()
            if text in name.lower() and all(t in repo.tags for t in tags) and task in {None, repo.task}
        ]
        start = int(query.get("cursor", ["0"])[0])
        page = found[start : start + self.hub.page]
        headers = {}
        if start + self.hub.page < len(found):
            query["cursor"] = [str(start + self.hub.page)]
            link = f"{self.hub.next_page_at or self.hub.endpoint}/api/models?{urlencode(query, doseq=True)}"
            headers["Link"] = f'<{link}>; rel="next"'
        return self.json(page, headers)

    def resolve(self):
        _, repo, file = self.hub.find(self.path)
        if repo is None:
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if not self.allowed(repo):
            return None
        if file is None:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": repo.sha, "Accept-Ranges": "bytes"}
        if not file.lfs:
            return self.answer(200, bytes(file.data), {**headers, "ETag": f'"{file.git_sha1}"'})
        linked = {"X-Linked-ETag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.data))}
        return self.answer(302, b"", {**headers, **linked, "Location": self.hub.storage + self.path})


class _StorageHandler(_Handler):
    def do_GET(self):
        if self.begin():
            return None
        if self.hub.faults.storage_down:
            self.close_connection = True
            return None
        assert "authorization" not in self.headers, "a token must not follow a redirect to another host"
        _, _, file = self.hub.find(self.path)
        if file is None:
            return self.answer(404, b"")
        data = file.data if file.lie is None else file.lie
        if self.hub.faults.endless:
            return self.endless(bytes(data))
        start, end, status = 0, len(data), 200
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        if match and not self.hub.faults.ignore_ranges and int(match[1]) >= self.hub.faults.whole_below:
            start = int(match[1])
            end = min(int(match[2]) + 1, end) if match[2] else end
            status = 206
            if start >= len(data):
                return self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        self.send_response(status)
        self.send_header("ETag", f'"{file.sha256[:32]}"')
        self.send_header("Content-Length", str(end - start))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.end_headers()
        if self.command != "HEAD":
            self.body(data, start, end)
        self.wfile.flush()
        return None

    def endless(self, data):
        self.close_connection = True
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)
        while not self.hub.stopping.is_set():
            self.wfile.write(bytes(65536))

    def body(self, data, start, end):
        self.hub.count_active(1)
        try:
            self.send_body(data, start, end)
        finally:
            self.hub.count_active(-1)

    def send_body(self, data, start, end):
        cut = self.hub.take("cut_after")
        stall = self.hub.take("stall_after")
        sent = 0
        step = 65536
        for index in range(start, end, step):
            piece = bytes(data[index : min(index + step, end)])
            for limit, act in ((cut, self.cut), (stall, self.stall)):
                if limit is not False and sent + len(piece) > limit:
                    self.wfile.write(piece[: max(0, limit - sent)])
                    self.wfile.flush()
                    return act()
            self.hub.pace(len(piece))
            sent += len(piece)
            self.hub.count(self.path, len(piece))  # before the client has it, and looks at the number
            self.wfile.write(piece)
        return None

    def cut(self):
        self.close_connection = True

    def stall(self):
        self.hub.stopping.wait(self.hub.faults.stall_s)
        self.close_connection = True
