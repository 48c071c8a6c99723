"""What it takes to point an editor or a coding agent at this server."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from devices.errors import InputFault

# Where no key is known: many clients refuse to start without any.
PLACEHOLDER_KEY = "tessera"


class NeedsHand(InputFault):
    """A file that cannot be changed with certainty; `snippet` is what to put there by hand."""

    code = "needs_hand"

    def __init__(self, path: Path, reason: str, snippet: str) -> None:
        super().__init__(f"{path} is left alone: {reason}. Add this yourself:\n{snippet}")
        self.path = path
        self.reason = reason
        self.snippet = snippet


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The server and the model to use. `url` has no path; `context` is what the model really has, in tokens.

    `capabilities` are those of the model, as the server lists them.
    """

    url: str
    model: str
    context: int
    key: str = PLACEHOLDER_KEY
    capabilities: tuple[str, ...] = ()

    @property
    def fim(self) -> bool:
        """It fills in the middle of code."""
        return "fim" in self.capabilities

    @property
    def tools(self) -> bool:
        """It calls tools."""
        return "tools" in self.capabilities

    @property
    def vision(self) -> bool:
        """It sees images."""
        return "vision" in self.capabilities

    @property
    def openai_url(self) -> str:
        """Base address of the OpenAI protocol."""
        return self.url + "/v1"

    @property
    def output_limit(self) -> int:
        """Tokens an answer may have: a quarter of the context, so that a conversation still fits."""
        return max(min(self.context // 4, 8192), 256)


@dataclass(frozen=True, kw_only=True)
class FileEdit:
    """A file as it is and as it should be; None: there is no file."""

    path: Path
    before: str | None
    after: str | None

    def diff(self) -> str:
        """The change as a unified diff, for a person to read before it happens."""
        old = (self.before or "").splitlines(keepends=True)
        new = (self.after or "").splitlines(keepends=True)
        names = (str(self.path) if self.before is not None else "/dev/null", str(self.path))
        lines = difflib.unified_diff(old, new, *names)
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a client is started against the server without touching its configuration."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    # Files of our own that the client is pointed at, by name; written to a folder of ours.
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Integration:
    """One editor or agent.

    `edits(home, endpoint)` are the changes of its own configuration; None: it keeps none in a file that may
    be written, and `steps` says what to do instead. `undo(now, before, after)` takes our part out of a file
    that someone changed after we did.
    `launch(endpoint, folder)` starts it; `folder` holds `Launch.files`.
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
    """A configuration file's text; None when there is none."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
