"""Consent for actions of a model; the user sees exactly what will happen."""

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
from engine.message_catalog.reasons import Reason, because

ConsentKind = Literal["edit", "run", "mcp", "mcp server", "tool"]
# "session": the same action may be repeated without a prompt until the session ends.
Decision = Literal["no", "once", "session"]
# The same for a whole tool: "always" and "never" are stored on disk.
ToolDecision = Literal["no", "once", "chat", "always", "never"]


@dataclass(frozen=True, kw_only=True)
class ConsentRequest:
    """`detail` is the complete action (diff, argv or arguments); `warnings` are what needs attention.

    Two requests with the same `key` are the same action.
    """

    kind: ConsentKind
    title: Reason | str
    detail: str
    key: str
    warnings: tuple[Reason | str, ...] = ()

    @property
    def warning(self) -> str:
        """The warnings in English; empty if there are none."""
        return " ".join(map(str, self.warnings))


Ask = Callable[[ConsentRequest], Decision]


class StoredDecision(msgspec.Struct, frozen=True):
    """A decision about a tool, and the fingerprint of the tool's definition at that time."""

    decision: Literal["always", "never"]
    fingerprint: str


class ConsentStore:
    """Permanent decisions, in `tool-consents.json`."""

    def __init__(self, paths: Paths | None = None) -> None:
        path = (paths or user_paths()).config / "tool-consents.json"
        self._store: JsonStore[dict[str, StoredDecision]] = JsonStore(
            path, dict[str, StoredDecision], dict, private=True
        )

    def all(self) -> dict[str, StoredDecision]:
        return dict(self._store.get())

    def find(self, key: str) -> StoredDecision | None:
        """The decision about a tool, or None."""
        return self._store.get().get(key)

    def keep(self, key: str, decision: StoredDecision | None) -> None:
        """Store a decision; None deletes it. Raises: OSError."""
        self._store.change(lambda decisions: with_row(decisions, key, decision))


@dataclass
class ToolConsent:
    """Consents of one chat. If a tool's definition changes, the user must decide again, except after "never"."""

    store: ConsentStore
    ask: Callable[[ConsentRequest], ToolDecision]
    _for_chat: set[tuple[str, str]] = field(default_factory=set)

    def refused(self, key: str) -> bool:
        """Return True if the tool must never be used."""
        stored = self.store.find(key)
        return stored is not None and stored.decision == "never"

    def given(self, request: ConsentRequest, fingerprint: str) -> bool:
        """Return True if the user allows it; prompts if necessary. `fingerprint` is the tool definition's hash."""
        stored = self.store.find(request.key)
        if stored is not None and stored.decision == "never":
            return False
        if stored is not None and stored.fingerprint == fingerprint:
            return True
        if (request.key, fingerprint) in self._for_chat:
            return True
        if stored is not None or any(key == request.key for key, _ in self._for_chat):
            request = replace(request, warnings=(because("tool_changed"), *request.warnings))
        decision = self.ask(request)
        if decision == "chat":
            self._for_chat.add((request.key, fingerprint))
        elif decision in {"always", "never"}:
            self.store.keep(request.key, StoredDecision("always" if decision == "always" else "never", fingerprint))
        return decision in {"once", "chat", "always"}


def fingerprint_of(value: object) -> str:
    """A short hash of a JSON value; any change of the value changes it."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def tool_fingerprint(spec: ToolSpec) -> str:
    """Fingerprint of a tool's definition, as shown to the model and the user."""
    return fingerprint_of([spec.name, spec.description, spec.parameters])


def start_request(config: McpServerConfig) -> ConsentRequest:
    """Consent request before a server is started or contacted for the first time."""
    if config.url:
        sends = ", ".join(config.headers)
        return ConsentRequest(
            kind="mcp server",
            title=because("connect_to_mcp_server", name=shown_line(config.name)),
            detail=shown_line(config.url),
            key=f"mcp server:{config.name}",
            warnings=(because("server_gets_headers", names=shown_line(sends)),) if sends else (),
        )
    gets = ", ".join(config.env)
    return ConsentRequest(
        kind="mcp server",
        title=because("start_mcp_server", name=shown_line(config.name)),
        detail=shown_argv(config.argv),
        key=f"mcp server:{config.name}:{shown_argv(config.argv)}",
        warnings=(because("server_gets_variables", names=shown_line(gets)),) if gets else (),
    )


@dataclass
class Consent:
    """Remembers what was allowed for the session; prompts for everything else."""

    ask: Ask
    _allowed: set[str] = field(default_factory=set)

    def given(self, request: ConsentRequest) -> bool:
        """Return True if the user allows it; prompts if necessary."""
        if request.key in self._allowed:
            return True
        decision = self.ask(request)
        if decision == "session":
            self._allowed.add(request.key)
        return decision != "no"

    def remembers(self, request: ConsentRequest) -> bool:
        """Return True if it was allowed for the session."""
        return request.key in self._allowed
