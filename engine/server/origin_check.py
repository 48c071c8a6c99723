"""Checks which host names the server answers to, and which web pages may use it.

A web page can send requests to loopback: through its own host name (DNS rebinding), or by simply posting. Headers
that browsers always send distinguish pages from programs.
"""

from typing import Final
from urllib.parse import urlsplit

import msgspec

# `0.0.0.0` also reaches loopback, and no page can be served from there under its own name.
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - a name, not a bind
# Names that containers use for their host computer. Source: the manuals of Docker Desktop and Podman.
CONTAINER_NAMES: Final = frozenset(
    {"host.docker.internal", "gateway.docker.internal", "host.containers.internal", "host.lima.internal"}
)
# Schemes of installed programs that display pages (Obsidian, Tauri, VS Code). No web site can have such an origin.
APP_SCHEMES: Final = frozenset({"app", "tauri", "vscode-webview", "vscode-file"})

Refusal = tuple[int, str, str]


class AllowedOrigins(msgspec.Struct, frozen=True, kw_only=True):
    """Allowed callers: `hosts` and `origins` are single entries; each switch allows a whole kind."""

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    containers: bool = True
    apps: bool = True
    local_pages: bool = False


class OriginCheck:
    """Refuses requests that `callers` does not allow."""

    def __init__(self, callers: AllowedOrigins) -> None:
        self._callers = callers
        own = LOOPBACK_NAMES | {host.lower() for host in callers.hosts}
        self._hosts = own | CONTAINER_NAMES if callers.containers else own
        # A page under a container's host name must come from a forged DNS entry: no page is served there.
        self._page_hosts = own
        self._origins = frozenset(callers.origins)

    def refusal(self, headers: dict[str, str], scheme: str) -> Refusal | None:
        """The refusal for this host or page, or None if it is allowed."""
        host, origin = headers.get("host", ""), headers.get("origin")
        name = _name(host)
        if name not in self._hosts:
            switch = "--containers" if name in CONTAINER_NAMES else f"--allow-host {name or 'NAME'}"
            words = f"This server does not answer to {host!r}; tessera serve {switch} lets it."
            return 403, "forbidden_host", words
        if origin is not None and not self._admits(origin, f"{scheme}://{host}".lower(), name):
            words = f"Pages from {origin!r} may not use this server; tessera serve {_switch(origin)} lets them."
            return 403, "forbidden_origin", words
        if origin is None and headers.get("sec-fetch-site") == "cross-site":
            words = "Pages of other sites may not use this server; tessera serve --allow-origin lets one of them."
            return 403, "forbidden_origin", words
        return None

    def _admits(self, origin: str, own: str, name: str) -> bool:
        if origin in self._origins or (origin.lower() == own and name in self._page_hosts):
            return True
        parts = _split(origin)
        if parts is None:
            return False
        if parts[0] in APP_SCHEMES:
            return self._callers.apps
        return self._callers.local_pages and _is_local_page(*parts)


def _split(origin: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(origin)
        return parts.scheme.lower(), (parts.hostname or "").lower()
    except ValueError:
        return None


def _is_local_page(scheme: str, host: str) -> bool:
    return scheme in {"http", "https"} and (host in LOOPBACK_NAMES or host.endswith(".localhost"))


def _switch(origin: str) -> str:
    parts = _split(origin)
    if parts is not None and parts[0] in APP_SCHEMES:
        return "--apps"
    if parts is not None and _is_local_page(*parts):
        return "--local-pages"
    return f"--allow-origin {origin[:200]}"


def _name(netloc: str) -> str:
    try:
        return (urlsplit(f"//{netloc}").hostname or "").lower()
    except ValueError:
        return ""
