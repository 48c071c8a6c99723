"""Which host names the server answers to, and which pages may use it.

A page in a browser can send requests to loopback: one that reached it under a name of its own (DNS rebinding), or
one that simply posts. Both are told apart from programs by what browsers always send.
"""

from typing import Final
from urllib.parse import urlsplit

import msgspec

# `0.0.0.0` reaches loopback too, and no page can be served from there under a name of its own.
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - a name, not a bind
# How programs in a container call the computer they run on. Source: the manuals of Docker Desktop and Podman.
CONTAINER_NAMES: Final = frozenset(
    {"host.docker.internal", "gateway.docker.internal", "host.containers.internal", "host.lima.internal"}
)
# Schemes of installed programs that show pages (Obsidian, Tauri, VS Code); no web site can have such an origin.
APP_SCHEMES: Final = frozenset({"app", "tauri", "vscode-webview", "vscode-file"})

Refusal = tuple[int, str, str]


class Callers(msgspec.Struct, frozen=True, kw_only=True):
    """Who may call. `hosts` and `origins` are listed one by one; the switches admit whole kinds."""

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    containers: bool = True
    apps: bool = True
    local_pages: bool = False


class Strangers:
    """Refuses what `callers` does not admit."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        own = LOOPBACK_NAMES | {host.lower() for host in callers.hosts}
        self._hosts = own | CONTAINER_NAMES if callers.containers else own
        # A page under a container's name would have come there by a forged name server: no page is served there.
        self._page_hosts = own
        self._origins = frozenset(callers.origins)

    def refusal(self, headers: dict[str, str], scheme: str) -> Refusal | None:
        """Why this host or page may not speak to the server; None if it may."""
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
    """Scheme and host of an origin."""
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
