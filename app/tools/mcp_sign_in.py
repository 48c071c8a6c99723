"""Signing in to MCP servers (OAuth 2.1 with PKCE, by the mcp package). Tokens are stored on this computer."""

import threading
import time
from collections.abc import Callable
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qs, urlsplit

import anyio
import msgspec

from engine.core.json_store import JsonStore, with_row
from engine.core.paths import Paths, user_paths

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

SIGN_IN_S: Final = 300.0
_LOOK_S: Final = 0.1
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class Grant(msgspec.Struct, frozen=True):
    """A stored sign-in: what the server issued, as JSON of the mcp package.

    `metadata`: where tokens are renewed.
    """

    tokens: str
    client: str
    metadata: str = ""
    resource: str = ""
    expires_s: float | None = None


class SignIns:
    """The grants by address of the server, in `mcp-tokens.json`, which only this user may read."""

    def __init__(self, paths: Paths | None = None) -> None:
        path = (paths or user_paths()).config / "mcp-tokens.json"
        self._store: JsonStore[dict[str, Grant]] = JsonStore(path, dict[str, Grant], dict, private=True)

    def find(self, url: str) -> Grant | None:
        """The grant of a server, or None."""
        return self._store.get().get(url)

    def keep(self, url: str, grant: Grant | None) -> None:
        """Store a grant; None signs out. Raises: OSError."""
        self._store.change(lambda grants: with_row(grants, url, grant))


class _Storage:
    """The grant of one server in the form that the mcp package requires. `store` is called with each new one."""

    def __init__(self, grant: Grant | None, store: Callable[[Grant], object]) -> None:
        self.grant = grant or Grant("", "")
        self._store = store

    async def get_tokens(self) -> "OAuthToken | None":
        from mcp.shared.auth import OAuthToken

        return OAuthToken.model_validate_json(self.grant.tokens) if self.grant.tokens else None

    async def set_tokens(self, tokens: "OAuthToken") -> None:
        expires_s = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self._change(tokens=tokens.model_dump_json(exclude_none=True), expires_s=expires_s)

    async def get_client_info(self) -> "OAuthClientInformationFull | None":
        from mcp.shared.auth import OAuthClientInformationFull

        return OAuthClientInformationFull.model_validate_json(self.grant.client) if self.grant.client else None

    async def set_client_info(self, client_info: "OAuthClientInformationFull") -> None:
        self._change(client=client_info.model_dump_json(exclude_none=True))

    def _change(self, **fields: Any) -> None:
        self.grant = msgspec.structs.replace(self.grant, **fields)
        self._store(self.grant)


def stored_sign_in(url: str) -> "OAuthClientProvider | None":
    """Authentication with the stored grant of a server; None without one. It renews tokens but opens no browser."""
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata

    grant = SignIns().find(url)
    if grant is None:
        return None
    storage = _Storage(grant, lambda changed: SignIns().keep(url, changed))
    provider = OAuthClientProvider(url, _client("http://127.0.0.1/callback"), storage)
    provider.context.token_expiry_time = grant.expires_s
    if grant.metadata:
        provider.context.oauth_metadata = OAuthMetadata.model_validate_json(grant.metadata)
    if grant.resource:
        resource = ProtectedResourceMetadata.model_validate_json(grant.resource)
        provider.context.protected_resource_metadata = resource
        provider.context.auth_server_url = str(resource.authorization_servers[0])
    return provider


class SignIn:
    """One sign-in: opens the server's page in a browser, and receives the answer on a loopback port.

    `open_page` gets the address of the page; `cancel` ends the waiting from any thread. Use it in a `with` block.
    """

    def __init__(self, url: str, open_page: Callable[[str], object]) -> None:
        from http.server import ThreadingHTTPServer

        self._url, self._open_page = url, open_page
        self._storage = _Storage(None, lambda _: None)  # nothing that a failed sign-in received is stored
        self._cancelled = threading.Event()
        self._state = ""
        self._answer: dict[str, str] | None = None
        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._provider: OAuthClientProvider | None = None

    def __enter__(self) -> Self:
        threading.Thread(target=self._listener.serve_forever, name="mcp-sign-in", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        self._listener.shutdown()
        self._listener.server_close()

    def cancel(self) -> None:
        """Stop waiting for the browser."""
        self._cancelled.set()

    def provider(self) -> "OAuthClientProvider":
        """The authentication that signs in when the server asks for it."""
        from mcp.client.auth import OAuthClientProvider

        back = f"http://127.0.0.1:{self._listener.server_port}/callback"
        self._provider = OAuthClientProvider(self._url, _client(back), self._storage, self._open, self._wait)
        return self._provider

    def keep(self) -> None:
        """Store what the server issued, if it asked for a sign-in. Raises: OSError."""
        if self._provider is None or not self._storage.grant.tokens:
            return
        context = self._provider.context
        metadata, resource = context.oauth_metadata, context.protected_resource_metadata
        grant = msgspec.structs.replace(
            self._storage.grant,
            metadata=metadata.model_dump_json(exclude_none=True) if metadata else "",
            resource=resource.model_dump_json(exclude_none=True) if resource else "",
        )
        SignIns().keep(self._url, grant)

    async def _open(self, page: str) -> None:
        from mcp.client.auth import OAuthFlowError

        parts = urlsplit(page)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
            raise OAuthFlowError(f"its sign-in page is not an https address: {page[:200]}")
        self._state = parse_qs(parts.query).get("state", [""])[0]
        self._open_page(page)

    async def _wait(self) -> Any:
        from mcp.client.auth import AuthorizationCodeResult, OAuthFlowError

        while self._answer is None:
            if self._cancelled.is_set():
                raise OAuthFlowError("the sign-in was cancelled")
            await anyio.sleep(_LOOK_S)
        if "code" not in self._answer:
            raise OAuthFlowError(f"the sign-in was refused: {self._answer.get('error', 'no code came back')}")
        return AuthorizationCodeResult(
            code=self._answer["code"], state=self._answer["state"], iss=self._answer.get("iss")
        )

    def _handler(self) -> "type[BaseHTTPRequestHandler]":
        from http.server import BaseHTTPRequestHandler

        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(*owner._take(self.path))

            def _reply(self, status: int, words: str) -> None:
                page = f"<!doctype html><meta charset=utf-8><title>Tessera</title><p>{escape(words)}</p>".encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Security-Policy", "default-src 'none'")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Log nothing: the address contains the code."""

        return Handler

    def _take(self, path: str) -> tuple[int, str]:
        """Handle the browser's return.

        Any web page could call this address; only the server's page knows the state.
        """
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path != "/callback" or not self._state or query.get("state") != self._state:
            return 404, "This is not the end of a sign-in of Tessera."
        if self._answer is None:
            self._answer = query
        if "code" not in query:
            return 200, "The sign-in was refused. You can close this page and go back to Tessera."
        return 200, "You are signed in. You can close this page and go back to Tessera."


def _client(back: str) -> Any:
    from mcp.shared.auth import OAuthClientMetadata

    return OAuthClientMetadata.model_validate({"client_name": "Tessera", "redirect_uris": [back]})
