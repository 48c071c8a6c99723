"""An MCP server at an address that asks for a sign-in, with its own authorization server: real HTTP on loopback."""

import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

TOOL = {"name": "add", "description": "Add two numbers.", "inputSchema": {"type": "object"}}


class SignInServer:
    """Serves one tool to those who signed in. `asked` has every request; `tokens` are the accepted ones."""

    def __init__(self):
        self.asked, self.tokens, self.codes = [], set(), {}
        self.refuses = ""  # an error that the sign-in page ends with
        self.page = None  # another address of the sign-in page
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                owner.get(self)

            def do_POST(self):
                owner.post(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))

            def do_DELETE(self):
                owner.reply(self, 200, {})

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"
        self.url = f"{self.origin}/mcp"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def reply(self, to, status, body, **headers):
        raw = b"" if body is None else json.dumps(body).encode()
        to.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            to.send_header(name.replace("_", "-"), value)
        to.send_header("Content-Length", str(len(raw)))
        to.end_headers()
        to.wfile.write(raw)

    def get(self, to):
        path, query = urlsplit(to.path).path, parse_qs(urlsplit(to.path).query)
        self.asked.append(("GET", path))
        if path.startswith("/.well-known/oauth-protected-resource"):
            self.reply(to, 200, {"resource": self.url, "authorization_servers": [f"{self.origin}/login"]})
        elif path.startswith("/.well-known/oauth-authorization-server"):
            login = f"{self.origin}/login"
            ends = {f"{name}_endpoint": f"{login}/{name}" for name in ("authorization", "token", "registration")}
            if self.page:
                ends["authorization_endpoint"] = self.page
            self.reply(
                to,
                200,
                {
                    "issuer": login,
                    **ends,
                    "response_types_supported": ["code"],
                    "code_challenge_methods_supported": ["S256"],
                },
            )
        elif path == "/login/authorization":
            back, state = query["redirect_uri"][0], query["state"][0]
            assert query["code_challenge_method"] == ["S256"]
            code = secrets.token_hex(8)
            self.codes[code] = query["code_challenge"][0]
            given = {"error": self.refuses} if self.refuses else {"code": code}
            self.reply(to, 302, None, Location=f"{back}?{urlencode({**given, 'state': state})}")
        else:
            self.reply(to, 405, None)

    def post(self, to, raw):
        path = urlsplit(to.path).path
        self.asked.append(("POST", path))
        if path == "/login/registration":
            self.reply(to, 201, {"client_id": "tessera-1", **json.loads(raw)})
        elif path == "/login/token":
            form = parse_qs(raw.decode())
            self.asked.append(("grant", form["grant_type"][0]))
            good = form.get("code", [""])[0] in self.codes or form.get("refresh_token") == ["again"]
            token = secrets.token_hex(8)
            self.tokens = {token} if good else self.tokens
            answer = {
                "access_token": token,
                "token_type": "Bearer",
                "expires_in": 3600,
                "refresh_token": "again",
            }
            self.reply(to, 200 if good else 400, answer if good else {"error": "invalid_grant"})
        elif to.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            self.reply(to, 401, None, WWW_Authenticate="Bearer")
        else:
            self.speak(to, json.loads(raw))

    def speak(self, to, message):
        """The protocol itself, as far as a list of tools and a call need it."""
        if "id" not in message:
            self.reply(to, 202, None)
            return
        result = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "far", "version": "1"},
            },
            "tools/list": {"tools": [TOOL]},
            "tools/call": {"content": [{"type": "text", "text": "5"}], "isError": False},
        }.get(message["method"])
        if result is None:
            error = {"code": -32601, "message": "no such method"}
            self.reply(to, 200, {"jsonrpc": "2.0", "id": message["id"], "error": error})
        else:
            self.reply(to, 200, {"jsonrpc": "2.0", "id": message["id"], "result": result})
