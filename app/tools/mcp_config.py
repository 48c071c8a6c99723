"""Configuration of MCP servers. Reading it starts and contacts no server."""

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from devices.atomic_file import locked, write_atomically
from devices.msgspec_lock import learned
from engine.core.errors import InputFault
from engine.core.paths import Paths, user_paths

_NAME = re.compile(r"^[A-Za-z0-9_-]{1,48}$")
MAX_CONFIG_BYTES: Final = 1 << 20
# Timeout of one call, unless the server's entry has another.
DEFAULT_CALL_S: Final = 120.0
MAX_CALL_S: Final = 3600.0
# Keys under which clients store their servers: Claude, Cursor and most others; VS Code; Zed. OpenCode uses "mcp".
_TABLES: Final = ("mcpServers", "servers", "context_servers")
# Keys of a server's address; the last one is Gemini CLI's.
_URLS: Final = ("url", "serverUrl", "httpUrl")


@dataclass(frozen=True)
class McpServerConfig:
    """Connection to one server: started as `argv` and used over stdin and stdout, or reached at `url`."""

    name: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    call_s: float = DEFAULT_CALL_S

    def as_json(self) -> dict[str, Any]:
        """The entry in the format of other clients."""
        entry: dict[str, Any] = {"type": "http", "url": self.url} if self.url else {"command": self.argv[0]}
        if self.argv:
            entry["args"] = list(self.argv[1:])
        if self.env:
            entry["env"] = dict(self.env)
        if self.headers:
            entry["headers"] = dict(self.headers)
        if self.call_s != DEFAULT_CALL_S:
            entry["timeout"] = self.call_s
        return entry


class BadMcpConfig(InputFault):
    """The configuration of MCP servers is invalid."""

    code = "bad_mcp_config"

    def __init__(self, source: object, reason: str) -> None:
        super().__init__(f"{source} is not a usable configuration of MCP servers: {reason}")
        self.path = source
        self.reason = reason


def parse_servers(text: str, source: object = "The text") -> list[McpServerConfig]:
    """Parse servers in the JSON of other clients: {"mcpServers": {name: entry}}, or only the inner table.

    Raises: BadMcpConfig.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMcpConfig(source, f"it is not JSON ({error})") from None
    if not isinstance(config, dict):
        raise BadMcpConfig(source, "it is not an object")
    table = next((config[key] for key in _TABLES if key in config), None)
    if table is None and isinstance(config.get("mcp"), dict):
        table = config["mcp"].get("servers", config["mcp"])
    if table is None and config and all(_is_entry(value) for value in config.values()):
        table = config
    if not isinstance(table, dict):
        raise BadMcpConfig(source, 'it has no "mcpServers"')
    return [_server(str(name), entry, source) for name, entry in table.items()]


def check_server(config: McpServerConfig, source: object = "The entry") -> McpServerConfig:
    """Validate a configuration and return it. Raises: BadMcpConfig."""
    if not _NAME.match(config.name):
        raise BadMcpConfig(source, f"{config.name!r} is not a name for a server (letters, digits, - and _)")
    if bool(config.argv) == bool(config.url):
        raise BadMcpConfig(source, f"{config.name} needs either a command or a url")
    if config.argv and (not config.argv[0].strip() or any("\0" in word for word in config.argv)):
        raise BadMcpConfig(source, f"the command of {config.name} is empty or contains a NUL")
    if config.url:
        try:
            parts = urlsplit(config.url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable:
            raise BadMcpConfig(source, f"the url of {config.name} is not an http or https address")
    if not 0 < config.call_s <= MAX_CALL_S:
        raise BadMcpConfig(source, f"the timeout of {config.name} must be between 0 and {MAX_CALL_S:g} s")
    return config


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and any(key in value for key in ("command", *_URLS))


def _server(name: str, entry: Any, source: object) -> McpServerConfig:
    if not isinstance(entry, dict):
        raise BadMcpConfig(source, f"the entry {name!r} is not an object")
    if entry.get("type") == "sse":
        raise BadMcpConfig(source, f"{name} uses the old sse transport; ask for its streamable HTTP address")
    try:
        if isinstance(command := entry.get("command"), dict):  # Zed's earlier form
            entry = {**entry, **command, "command": command.get("path")}
        env = entry.get("env") or entry.get("environment") or {}
        argv = _words(entry.get("command"))
        server = McpServerConfig(
            name,
            (*argv, *_words(entry.get("args"), is_line=True)) if argv else (),
            {str(key): str(value) for key, value in env.items()},
            str(next(filter(None, map(entry.get, _URLS)), "")),
            {str(key): str(value) for key, value in (entry.get("headers") or {}).items()},
            _seconds(float(entry.get("timeout") or DEFAULT_CALL_S)),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise BadMcpConfig(source, f"{name}: {error!r}") from error
    return check_server(server, source)


def _words(value: Any, *, is_line: bool = False) -> list[str]:
    """Words of a command: of a list, or one text, which `is_line` divides as a shell does."""
    if value is None or isinstance(value, list):
        return [str(word) for word in value or ()]
    return shlex.split(str(value)) if is_line else [str(value)]


def _seconds(limit: float) -> float:
    """A longer limit than any of ours is in milliseconds, as in several clients."""
    return limit / 1000 if limit > MAX_CALL_S else limit


def read_mcp_config(path: Path) -> list[McpServerConfig]:
    """Servers of a file; empty if it does not exist. Raises: BadMcpConfig."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadMcpConfig(path, error.strerror or str(error)) from error
    if len(raw) > MAX_CONFIG_BYTES:
        raise BadMcpConfig(path, f"it is larger than {MAX_CONFIG_BYTES >> 20} MiB")
    return parse_servers(raw.decode("utf-8", "replace"), path)


class ServerList:
    """The user's servers in `mcp.json`, shared by window and terminal; other clients can read it."""

    def __init__(self, paths: Paths | None = None) -> None:
        self.path = (paths or user_paths()).config / "mcp.json"

    def read(self) -> list[McpServerConfig]:
        """All servers. Raises: BadMcpConfig: the file is invalid; it stays unchanged."""
        return read_mcp_config(self.path)

    def find(self, name: str) -> McpServerConfig | None:
        """The server of that name, or None. Raises: BadMcpConfig."""
        return next((server for server in self.read() if server.name == name), None)

    def add(self, added: list[McpServerConfig]) -> None:
        """Add servers; replaces those with the same name. Raises: BadMcpConfig, OSError."""
        with locked(self.path):
            by_name = {server.name: server for server in self.read()}
            self._write({**by_name, **{server.name: server for server in added}})

    def remove(self, name: str) -> None:
        """Remove a server. Raises: BadMcpConfig, OSError, KeyError."""
        with locked(self.path):
            by_name = {server.name: server for server in self.read()}
            del by_name[name]
            self._write(by_name)

    def _write(self, servers: dict[str, McpServerConfig]) -> None:
        """Write the file readable only by this user, because it may contain keys."""
        document = {"mcpServers": {name: server.as_json() for name, server in servers.items()}}
        write_atomically(self.path, json.dumps(document, indent=2).encode(), mode=0o600)


class KnownServer(msgspec.Struct, frozen=True, kw_only=True):
    """A well-known server; fills the form for a new one. `where` has its command or address."""

    name: str
    title: str
    source: str
    command: str = ""
    url: str = ""
    headers: str = ""
    needs: str = ""

    def where(self, folder: Path | None = None) -> str:
        """The address, or the command for a folder of the user; None means the documents folder."""
        if folder is None:
            folder = Path.home() / "Documents"
            folder = folder if folder.is_dir() else Path.home()
        return self.url or self.command.replace("{folder}", shlex.quote(str(folder)))


@cache
def known_servers() -> tuple[str, tuple[KnownServer, ...]]:
    """The date of the list of well-known servers, and the list."""
    raw = tomllib.loads(Path(__file__).with_name("known_servers.toml").read_text(encoding="utf-8"))
    return raw["dated"], msgspec.convert(raw["server"], learned(tuple[KnownServer, ...]))
