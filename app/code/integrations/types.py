"""Types for connecting an editor or a coding agent to this server."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from devices.errors import InputFault

# Used if no key is known: many clients refuse to start without one.
PLACEHOLDER_KEY = "tessera"


class NeedsHand(InputFault):
    """A file that cannot be changed safely; `snippet` is the text that the user must add."""

    code = "needs_hand"

    def __init__(self, path: Path, reason: str, snippet: str) -> None:
        super().__init__(f"{path} was not changed: {reason}. Add this yourself:\n{snippet}")
        self.path = path
        self.reason = reason
        self.snippet = snippet


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The server and the model to use. `url` has no path; `context` is the model's actual context in tokens.

    `capabilities` are the model's capabilities as the server lists them.
    """

    url: str
    model: str
    context: int
    key: str = PLACEHOLDER_KEY
    capabilities: tuple[str, ...] = ()

    @property
    def fim(self) -> bool:
        """Return True if the model can fill in the middle of code."""
        return "fim" in self.capabilities

    @property
    def tools(self) -> bool:
        """Return True if the model can call tools."""
        return "tools" in self.capabilities

    @property
    def vision(self) -> bool:
        """Return True if the model accepts images."""
        return "vision" in self.capabilities

    @property
    def openai_url(self) -> str:
        """Base URL of the OpenAI API."""
        return self.url + "/v1"

    @property
    def output_limit(self) -> int:
        """Maximum response tokens: a quarter of the context, so that a conversation still fits."""
        return max(min(self.context // 4, 8192), 256)


@dataclass(frozen=True, kw_only=True)
class FileEdit:
    """Current and new text of a file; None means that the file does not exist."""

    path: Path
    before: str | None
    after: str | None

    def diff(self) -> str:
        """The change as a unified diff, to show before it is written."""
        old = (self.before or "").splitlines(keepends=True)
        new = (self.after or "").splitlines(keepends=True)
        names = (str(self.path) if self.before is not None else "/dev/null", str(self.path))
        lines = difflib.unified_diff(old, new, *names)
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Start command of a client for this server, without changes to its configuration."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    # Files for the client, by name; Tessera writes them to its own folder.
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Integration:
    """One editor or agent.

    `edits(home, endpoint)` returns the changes to its configuration; it is None if the client has no file that may
    be written, and then `steps` explains what to do. `undo(now, before, after)` removes Tessera's part from a file
    that was changed later. `launch(endpoint, folder)` starts the client; `folder` contains `Launch.files`.
    """

    name: str
    title: str
    kind: Literal["agent", "editor"]
    install: str
    edits: Callable[[Path, Endpoint], list[FileEdit]] | None = None
    undo: Callable[[str, str | None, str], str] | None = None
    launch: Callable[[Endpoint, Path], Launch] | None = None
    steps: Callable[[Endpoint], str] | None = None


def read_config(path: Path) -> str | None:
    """Text of a configuration file; None if it does not exist."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
