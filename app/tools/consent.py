"""What a model may do only when a person says so, shown exactly as it would happen."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from app.tools.mcp_config import McpServerConfig
from app.tools.types import ToolSpec, shown_argv, shown_line
from engine.core.json_store import JsonStore, with_row
from engine.core.paths import Paths, user_paths

ConsentKind = Literal["edit", "run", "mcp", "mcp server", "tool"]
# "session": the very same thing may be done again without asking until the session ends.
Decision = Literal["no", "once", "session"]
# The same for a tool as a whole: "always" and "never" are kept on the disk.
ToolDecision = Literal["no", "once", "chat", "always", "never"]


@dataclass(frozen=True, kw_only=True)
class ConsentRequest:
    """`detail` is the whole truth (the diff, the argv, the arguments); `warning` what deserves attention.

    Two requests with the same `key` are the same thing.
    """

    kind: ConsentKind
    title: str
    detail: str
    key: str
    warning: str | None = None


Ask = Callable[[ConsentRequest], Decision]


class StoredDecision(msgspec.Struct, frozen=True):
    """A decision about a tool, and the definition of the tool that it was made for."""

    decision: Literal["always", "never"]
    fingerprint: str


class ConsentStore:
    """What was decided for good, in `tool-consents.json`."""

    def __init__(self, paths: Paths | None = None) -> None:
        path = (paths or user_paths()).config / "tool-consents.json"
        self._store: JsonStore[dict[str, StoredDecision]] = JsonStore(
            path, dict[str, StoredDecision], dict, private=True
        )

    def all(self) -> dict[str, StoredDecision]:
        """Every decision by its key."""
        return dict(self._store.get())

    def find(self, key: str) -> StoredDecision | None:
        """The decision about a tool."""
        return self._store.get().get(key)

    def keep(self, key: str, decision: StoredDecision | None) -> None:
        """Remember a decision; None forgets it. Raises: OSError."""
        self._store.change(lambda decisions: with_row(decisions, key, decision))


@dataclass
class ToolConsent:
    """The consents of one chat. A tool whose definition changed is asked for again, whatever was said before."""

    store: ConsentStore
    ask: Callable[[ConsentRequest], ToolDecision]
    _for_chat: set[tuple[str, str]] = field(default_factory=set)

    def refused(self, key: str) -> bool:
        """It is never to be used."""
        stored = self.store.find(key)
        return stored is not None and stored.decision == "never"

    def given(self, request: ConsentRequest, fingerprint: str) -> bool:
        """Whether the person allows it, asking if need be. `fingerprint`: of what the tool says it is."""
        stored = self.store.find(request.key)
        if stored is not None and stored.decision == "never":
            return False
        if stored is not None and stored.fingerprint == fingerprint:
            return True
        if (request.key, fingerprint) in self._for_chat:
            return True
        if stored is not None or any(key == request.key for key, _ in self._for_chat):
            changed = "It is not what you allowed before: its description, arguments or command changed."
            request = replace(request, warning=f"{changed} {request.warning or ''}".strip())
        decision = self.ask(request)
        if decision == "chat":
            self._for_chat.add((request.key, fingerprint))
        elif decision in {"always", "never"}:
            self.store.keep(request.key, StoredDecision("always" if decision == "always" else "never", fingerprint))
        return decision in {"once", "chat", "always"}


def fingerprint_of(value: object) -> str:
    """A short name for what can be written as JSON: it changes with the slightest change."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def tool_fingerprint(spec: ToolSpec) -> str:
    """What a tool says it is, to the model and to the person."""
    return fingerprint_of([spec.name, spec.description, spec.parameters])


def start_request(config: McpServerConfig) -> ConsentRequest:
    """The question before a server is started or reached for the first time."""
    if config.url:
        sends = ", ".join(config.headers)
        return ConsentRequest(
            kind="mcp server",
            title=shown_line(f"Connect to the MCP server {config.name}"),
            detail=shown_line(config.url),
            key=f"mcp server:{config.name}",
            warning=shown_line(f"It gets these headers: {sends}") if sends else None,
        )
    gets = ", ".join(config.env)
    return ConsentRequest(
        kind="mcp server",
        title=shown_line(f"Start the MCP server {config.name}"),
        detail=shown_argv(config.argv),
        key=f"mcp server:{config.name}:{shown_argv(config.argv)}",
        warning=shown_line(f"It gets these variables: {gets}") if gets else None,
    )


@dataclass
class Consent:
    """Remembers what was allowed for the session; everything else is asked."""

    ask: Ask
    _allowed: set[str] = field(default_factory=set)

    def given(self, request: ConsentRequest) -> bool:
        """Whether the person allows it, asking if need be."""
        if request.key in self._allowed:
            return True
        decision = self.ask(request)
        if decision == "session":
            self._allowed.add(request.key)
        return decision != "no"

    def remembers(self, request: ConsentRequest) -> bool:
        """It was allowed for the session and will not be asked."""
        return request.key in self._allowed
