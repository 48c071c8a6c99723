"""The tools of an agent: list, read, search, edit, run and plan, all within one project folder."""

import difflib
import json
import math
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from app.code.agent import sandbox
from app.code.agent.command import run_command
from app.code.agent.types import Edited, OnEvent, PlanItem, Planned
from app.code.edits.session import EditSession
from app.code.edits.types import Answer, Hunk
from app.code.index.project import ProjectIndex
from app.code.index.walk import is_ignored
from app.tools.consent import Consent, ConsentRequest
from app.tools.types import ToolOutcome, ToolRefused, ToolSpec, shown_argv, shown_line, shown_text
from devices.errors import TesseraError
from devices.msgspec_lock import learned

_MAX_LINES = 400
_MAX_RESULT_CHARS = 24_000
_MAX_HITS = 60
_MAX_ENTRIES = 300
_MAX_PLAN = 30
_MAX_TIMEOUT_S = 600.0
_DEFAULT_TIMEOUT_S = 120.0

_PATH = {"type": "string", "description": "Path relative to the project folder."}


class ListArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of list(path)."""

    path: str = "."


class ReadArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of read(path, first, last)."""

    path: str
    first: int = 1
    last: int | None = None


class SearchArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of search(text)."""

    text: str


class EditArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of edit(path, search, replace)."""

    path: str
    search: str
    replace: str


class RunArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of run(argv, timeout_s, network, home)."""

    argv: list[str]
    timeout_s: float = _DEFAULT_TIMEOUT_S
    network: bool = False
    home: bool = False


class PlanArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of plan(items)."""

    items: list[PlanItem]


def _schema(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


SPECS = (
    ToolSpec("list", "List the files and folders of a folder.", _schema((), path=_PATH)),
    ToolSpec(
        "read",
        f"Read a text file, at most {_MAX_LINES} lines at a time, with line numbers.",
        _schema(("path",), path=_PATH, first={"type": "integer"}, last={"type": "integer"}),
    ),
    ToolSpec(
        "search",
        "Find lines that hold a text (case ignored) and definitions of that name, in the whole project.",
        _schema(("text",), text={"type": "string"}),
    ),
    ToolSpec(
        "edit",
        "Replace whole lines of a file. `search` quotes them exactly and must occur once; empty makes a new file.",
        _schema(("path", "search", "replace"), path=_PATH, search={"type": "string"}, replace={"type": "string"}),
    ),
    ToolSpec(
        "run",
        "Run a command in the project folder, without a shell: the program and each argument is one word. "
        "It reaches neither the network nor the home folder unless you ask for them and the person agrees.",
        _schema(
            ("argv",),
            argv={"type": "array", "items": {"type": "string"}, "minItems": 1},
            timeout_s={"type": "number"},
            network={"type": "boolean", "description": "The command needs the network."},
            home={"type": "boolean", "description": "The command needs the person's home folder."},
        ),
    ),
    ToolSpec(
        "plan",
        "Show the person what you mean to do; send the whole list again whenever a state changes.",
        _schema(
            ("items",),
            items={
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "text": {"type": "string"},
                        "state": {"type": "string", "enum": ["open", "doing", "done"]},
                    },
                    "required": ["text"],
                    "additionalProperties": False,
                },
            },
        ),
    ),
)


class Toolbox:
    """Runs tool calls. Writes and runs nothing without consent; `cancelled` stops a command."""

    def __init__(
        self,
        index: ProjectIndex,
        edits: EditSession,
        consent: Consent,
        on_event: OnEvent,
        cancelled: threading.Event | None = None,
    ) -> None:
        self._index = index
        self._edits = edits
        self._consent = consent
        self._on_event = on_event
        self._cancelled = cancelled
        self._tools: dict[str, tuple[type[msgspec.Struct], Callable[[Any], ToolOutcome]]] = {
            "list": (ListArguments, self._list),
            "read": (ReadArguments, self._read),
            "search": (SearchArguments, self._search),
            "edit": (EditArguments, self._edit),
            "run": (RunArguments, self._run),
            "plan": (PlanArguments, self._plan),
        }

    def specs(self) -> tuple[ToolSpec, ...]:
        """Tool specifications for the model."""
        return SPECS

    def call(self, name: str, arguments: str) -> ToolOutcome:
        """Run one call; an error becomes a result that the model can act on."""
        if name not in self._tools:
            return ToolOutcome(f"There is no tool {name!r}. Tools: {', '.join(self._tools)}.", ok=False)
        kind, tool = self._tools[name]
        try:
            outcome = tool(msgspec.convert(json.loads(arguments or "{}"), learned(kind)))
        except (ValueError, RecursionError) as error:
            return ToolOutcome(f"The arguments of {name} are not usable: {error}", ok=False)
        except (TesseraError, ToolRefused, OSError) as error:
            return ToolOutcome(str(error), ok=False)
        text = outcome.text
        if len(text) > _MAX_RESULT_CHARS:
            text = text[:_MAX_RESULT_CHARS] + f"\n[cut after {_MAX_RESULT_CHARS} characters]"
        return ToolOutcome(text, outcome.ok)

    def _list(self, arguments: ListArguments) -> ToolOutcome:
        workspace = self._index.workspace
        folder = "" if arguments.path in {"", ".", "./"} else workspace.normalize(arguments.path)
        prefix = folder + "/" if folder else ""
        lines = [
            name + "/" if is_folder else name
            for name, is_folder in workspace.list_folder(folder)
            if not is_ignored(workspace.root, prefix + name + ("/" if is_folder else ""))
        ]
        cut = [f"[{len(lines) - _MAX_ENTRIES} more]"] if len(lines) > _MAX_ENTRIES else []
        return ToolOutcome("\n".join(lines[:_MAX_ENTRIES] + cut) or "The folder is empty.")

    def _read(self, arguments: ReadArguments) -> ToolOutcome:
        lines = self._index.workspace.read(arguments.path).text.split("\n")
        first = max(arguments.first, 1)
        last = min(arguments.last or len(lines), len(lines), first + _MAX_LINES - 1)
        numbered = [f"{number}: {lines[number - 1]}" for number in range(first, last + 1)]
        more = f"\n[{len(lines) - last} more lines]" if last < len(lines) else ""
        return ToolOutcome("\n".join(numbered) + more)

    def _search(self, arguments: SearchArguments) -> ToolOutcome:
        words = re.findall(r"\w+", arguments.text)
        if not words:
            raise ToolRefused("Search needs at least one word or number.")
        found: list[str] = []
        with self._index.lock:
            hits = self._index.database.symbols_named(arguments.text.strip(), limit=8)
            found += [f"{hit.path}:{hit.line}: [{hit.kind}] {hit.signature}" for hit in hits]
            match = " AND ".join(f'"{word}"' for word in words[:12])
            for chunk in self._index.database.search(match, 200):
                found += self._lines_with(arguments.text.strip().lower(), chunk.path, chunk.first, chunk.last)
                if len(found) >= _MAX_HITS:
                    break
        unique = list(dict.fromkeys(found))[:_MAX_HITS]
        return ToolOutcome("\n".join(unique) or "Nothing found.")

    def _lines_with(self, text: str, path: str, first: int, last: int) -> list[str]:
        try:
            lines = self._index.workspace.read(path).text.split("\n")[first - 1 : last]
        except (TesseraError, OSError):
            return []
        return [
            f"{path}:{number}: {line.strip()[:200]}"
            for number, line in enumerate(lines, first)
            if text in line.lower()
        ]

    def _edit(self, arguments: EditArguments) -> ToolOutcome:
        search = tuple(arguments.search.rstrip("\n").split("\n")) if arguments.search.strip() else ()
        replace = tuple(arguments.replace.removesuffix("\n").split("\n")) if arguments.replace else ()
        hunk = Hunk(
            path=arguments.path,
            kind="change" if search else "create",
            search=search,
            replace=replace,
            source="block",
        )
        proposal = self._edits.propose(Answer(hunks=(hunk,), malformed=()))
        if proposal.refused:
            refused = proposal.refused[0]
            near = f" Lines near it: {', '.join(map(str, refused.candidates))}." if refused.candidates else ""
            raise ToolRefused(f"Not applied: {refused.reason}.{near}")
        (file,) = proposal.files
        before = file.before.text if file.before else ""
        diff = "".join(
            difflib.unified_diff(
                before.splitlines(keepends=True),
                file.result.text.splitlines(keepends=True),
                file.path,
                file.path,
                n=3,
            )
        )
        warning = self._edits.warning(file.path)
        request = ConsentRequest(
            kind="edit",
            title=shown_line(f"{'Change' if file.before else 'Create'} {file.path}"),
            detail=shown_text(diff),
            key=f"edit:{file.path}",
            warning=warning,
        )
        if self._consent.remembers(request):
            self._on_event(Edited(file.path, diff))
        if not self._consent.given(request):
            raise ToolRefused("The person declined this edit.")
        self._edits.apply(proposal, label=f"agent: {file.path}", allow_uncommitted=True)
        self._index.update([file.path])
        return ToolOutcome(f"Applied to {file.path}.")

    def _run(self, arguments: RunArguments) -> ToolOutcome:
        if not arguments.argv or not arguments.argv[0].strip():
            raise ToolRefused("argv must name a program.")
        openings: sandbox.Openings | None = sandbox.Openings(network=arguments.network, home=arguments.home)
        lacking = sandbox.missing()
        if lacking is not None:
            openings = None
        request = ConsentRequest(
            kind="run",
            title="Run a command in the project folder" + (", in a sandbox" if openings else ""),
            detail=shown_argv(arguments.argv),
            key="run:" + json.dumps([arguments.argv, arguments.network, arguments.home]),
            warning=" ".join(filter(None, (_warning_for(arguments.argv), _reach(openings, lacking)))) or None,
        )
        if not self._consent.given(request):
            raise ToolRefused("The person declined this command.")
        # NaN passes every comparison with a limit.
        wanted = arguments.timeout_s if math.isfinite(arguments.timeout_s) else _DEFAULT_TIMEOUT_S
        timeout_s = min(max(wanted, 1.0), _MAX_TIMEOUT_S)
        root = self._index.workspace.root
        done = run_command(arguments.argv, root, timeout_s, openings, self._cancelled)
        with self._index.lock:
            self._index.refresh()
        ended = "was stopped" if done.exit_code is None else f"ended with code {done.exit_code}"
        return ToolOutcome(
            f"The command {ended} after {done.elapsed_s:.1f} s.\n{done.output}", ok=done.exit_code == 0
        )

    def _plan(self, arguments: PlanArguments) -> ToolOutcome:
        items = arguments.items[:_MAX_PLAN]
        self._on_event(Planned(items))
        return ToolOutcome("The plan is shown.")


def _reach(openings: sandbox.Openings | None, lacking: str | None) -> str | None:
    """What the command can access beyond the project folder; None if nothing."""
    if openings is None:
        return f"No sandbox: {lacking}. It can do whatever you can."
    reached = []
    if openings.network:
        reached.append("the network")
    if openings.home:
        reached.append("your home folder, to read and to write")
    asks = f"It asks for {' and '.join(reached)}." if reached else None
    return " ".join(filter(None, (asks, sandbox.weakness()))) or None


def _warning_for(argv: Sequence[str]) -> str | None:
    """A warning about a suspicious command line; None if there is nothing to warn about."""
    outside = [w for w in argv[1:] if w.startswith(("/", "~")) or ".." in w.split("/")]
    if any(not word.isprintable() for word in argv):
        return "The command holds invisible characters; they are spelled out."
    if argv[0].rsplit("/", 1)[-1] in {"sh", "bash", "zsh", "cmd", "powershell", "sudo", "eval"}:
        return "The command runs a shell or another user's rights: read what it is told to do."
    if outside:
        return f"It names places outside the project: {', '.join(outside[:3])}."
    return None
