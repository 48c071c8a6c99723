"""A site with pages of all kinds, and a SearXNG instance, over HTTP."""

import contextlib
import http.server
import json
import threading
import time

PAGE = b"""<html><head><title>x</title><script>evil()</script></head><body><nav>menu</nav>
<h1>Lighthouses</h1><p>The lamp of Lindesnes is 50 metres high.</p></body></html>"""
ROWS = [
    {"url": "https://example.org/lamp", "title": "The <b>lamp</b>", "content": "50 metres &amp; more"},
    {"url": "javascript:alert(1)", "title": "no page"},
    {"url": "https://example.org/sea", "title": "The sea"},
]
ANSWERS = {
    "/search": (json.dumps({"results": ROWS}).encode(), "application/json"),
    "/closed/search": (b"no", "text/html", 403),
    "/latin": ("<p>Größe</p>".encode("latin-1"), "text/html; charset=iso-8859-1"),
    "/picture": (b"GIF89a", "image/gif"),
    "/long": (b"zzzz " * 5000, "text/plain"),
}


class Site(http.server.BaseHTTPRequestHandler):
    """Pages by their path; notes who asked for what."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.path, self.headers["Host"]))
        path, _, query = self.path.partition("?")
        if path == "/to":
            self.answer(b"", status=302, Location=query)
        elif path in ANSWERS:
            self.answer(*ANSWERS[path])
        elif path in ("/drip", "/endless"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"X-Slow: " if path == "/drip" else b"\r\n"))
            with contextlib.suppress(OSError):
                for _ in range(200):
                    self.wfile.write(b"a" if path == "/drip" else b"<p>more</p>" * 10_000)
                    time.sleep(0.05 if path == "/drip" else 0)
            self.close_connection = True
        elif path == "/zipped":
            self.answer(b"\x1f\x8b", **{"Content-Encoding": "gzip"})
        else:
            self.answer(PAGE, "text/html; charset=utf-8", status=200 if path == "/" else 404)

    def answer(self, body, kind="text/html", status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def web_site(tls=None):
    """The running site; `seen` lists the paths and hosts of its requests."""
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    if tls is not None:
        running.socket = tls.wrap_socket(running.socket, server_side=True)
    running.seen = []
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.shutdown()
        running.server_close()
        thread.join()
