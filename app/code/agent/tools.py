"""The agent's tools: list, read, search and change files, run commands and plan, within one project."""

import difflib
import json
import math
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from app.code.agent import sandbox
from app.code.agent.aliases import translated
from app.code.agent.command import run_command
from app.code.agent.types import CommandEnded, CommandStarted, Edited, OnEvent, PlanItem, Planned, Printed
from app.code.edits.parse import contents, parse_answer
from app.code.edits.session import EditSession, FileProposal
from app.code.edits.types import Hunk, ParsedEdits
from app.code.index.project import ProjectIndex
from app.code.index.walk import is_ignored
from app.tools.consent import Consent, ConsentRequest
from app.tools.types import ToolOutcome, ToolRefused, ToolSpec, shown_argv, shown_line, shown_text
from devices.errors import TesseraError
from devices.msgspec_lock import learned
from engine.message_catalog.reasons import Reason, because

_MAX_LINES = 400
_MAX_RESULT_CHARS = 24_000
_MAX_HITS = 60
_MAX_ENTRIES = 300
_MAX_PLAN = 30
_MAX_PLACES = 8
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
    """Arguments of edit(path, search, replace, all)."""

    path: str
    search: str
    replace: str
    all: bool = False


class WriteArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of write(path, text)."""

    path: str
    text: str


class InsertArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of insert(path, after, text)."""

    path: str
    after: int
    text: str


class MoveArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of move(path, to)."""

    path: str
    to: str


class DeleteArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of delete(path)."""

    path: str


class PatchArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of patch(text): edits in any format that an answer may use."""

    text: str
    path: str = ""


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
        "Replace text in a file. `search` quotes it exactly and must occur once, unless `all` is true; "
        "empty makes a new file.",
        _schema(
            ("path", "search", "replace"),
            path=_PATH,
            search={"type": "string"},
            replace={"type": "string"},
            all={"type": "boolean"},
        ),
    ),
    ToolSpec(
        "insert",
        "Insert lines into a file after the line of this number; 0 is the beginning.",
        _schema(("path", "after", "text"), path=_PATH, after={"type": "integer"}, text={"type": "string"}),
    ),
    ToolSpec(
        "write", "Write the whole text of a file.", _schema(("path", "text"), path=_PATH, text={"type": "string"})
    ),
    ToolSpec("move", "Move or rename a file.", _schema(("path", "to"), path=_PATH, to=_PATH)),
    ToolSpec("delete", "Delete a file.", _schema(("path",), path=_PATH)),
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
        self._cancelled = cancelled or threading.Event()
        self._stopped = threading.Event()  # the running command must end
        self._tools: dict[str, tuple[type[msgspec.Struct], Callable[[Any], ToolOutcome]]] = {
            "list": (ListArguments, self._list),
            "read": (ReadArguments, self._read),
            "search": (SearchArguments, self._search),
            "edit": (EditArguments, self._edit),
            "insert": (InsertArguments, self._insert),
            "write": (WriteArguments, self._write),
            "move": (MoveArguments, self._move),
            "delete": (DeleteArguments, self._delete),
            "patch": (PatchArguments, self._patch),
            "run": (RunArguments, self._run),
            "plan": (PlanArguments, self._plan),
        }

    def specs(self) -> tuple[ToolSpec, ...]:
        """Tool specifications for the model."""
        return SPECS

    def call(self, name: str, arguments: str) -> ToolOutcome:
        """Run one call; an error becomes a result that the model can act on.

        Names and arguments that models were trained on are accepted as well.
        """
        try:
            own, values = translated(name, json.loads(arguments or "{}"))
            if own not in self._tools:
                return ToolOutcome(f"There is no tool {name!r}. Tools: {', '.join(self._tools)}.", ok=False)
            kind, tool = self._tools[own]
            outcome = tool(msgspec.convert(values, learned(kind), strict=False))  # "10" is the number 10
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
        lines = contents(self._index.workspace.read(arguments.path).text)
        first = max(arguments.first, 1)
        end = arguments.last if arguments.last and arguments.last > 0 else len(lines)  # -1: to the end
        last = min(end, len(lines), first + _MAX_LINES - 1)
        numbered = [f"{number}: {lines[number - 1]}" for number in range(first, last + 1)]
        if not lines:
            return ToolOutcome("The file is empty.")
        if not numbered:
            return ToolOutcome(f"There are no lines {first} to {end}: the file has {len(lines)} lines.", ok=False)
        more = f"\n[{len(lines) - last} more lines]" if last < len(lines) else ""
        return ToolOutcome("\n".join(numbered) + more)

    def _search(self, arguments: SearchArguments) -> ToolOutcome:
        text = arguments.text.strip()
        if not re.search(r"\w", text):
            raise ToolRefused("Search needs at least one word or number.")
        hit_lines = self._hit_lines(text)
        if not hit_lines and _is_pattern(text):
            # Models are used to patterns: the simple ones are several texts, with marks before signs.
            for part in re.split(r"\\?\|", re.sub(r"\\s[+*]?", " ", text))[:_MAX_PLACES]:
                hit_lines += self._hit_lines(re.sub(r"\\([bBAZ]|(\W))", r"\2", part).strip("^$ "))
        unique = list(dict.fromkeys(hit_lines))[:_MAX_HITS]
        nothing = "Nothing found. "
        nothing += "The text is looked for as it is, not as a pattern." if _is_pattern(text) else ""
        return ToolOutcome("\n".join(unique) or nothing.rstrip())

    def _hit_lines(self, text: str) -> list[str]:
        """Definitions with this name, and lines that hold it."""
        words = [word for word in re.findall(r"\w+", text) if word.strip("_")][:12]
        if not words:
            return []
        match = " AND ".join(f'"{word}"' for word in words) + " *"  # the last word may go on
        with self._index.lock:
            hits = self._index.database.symbols_named(text, limit=8)
            hit_lines = [f"{hit.path}:{hit.line}: [{hit.kind}] {hit.signature}" for hit in hits]
            for chunk in self._index.database.search(match, 200):
                hit_lines += self._lines_with(text.lower(), chunk.path, chunk.first, chunk.last)
                if len(hit_lines) >= _MAX_HITS:
                    break
        return hit_lines

    def _lines_with(self, text: str, path: str, first: int, last: int) -> list[str]:
        try:
            lines = contents(self._index.workspace.read(path).text)[first - 1 : last]
        except (TesseraError, OSError):
            return []
        return [
            f"{path}:{number}: {line.strip()[:200]}"
            for number, line in enumerate(lines, first)
            if text in line.lower()
        ]

    def _edit(self, arguments: EditArguments) -> ToolOutcome:
        if not arguments.search.strip():
            edit = Hunk(
                path=arguments.path, kind="create", replace=tuple(contents(arguments.replace)), source="block"
            )
            return self._propose(ParsedEdits(hunks=(edit,), malformed=()))
        there = self._index.workspace.read(arguments.path).text
        text = there.replace("\r\n", "\n")
        search, new = (value.replace("\r\n", "\n") for value in (arguments.search, arguments.replace))
        count = text.count(search)
        if count == 1 or (count and arguments.all):
            return self._write_text(arguments.path, there, text.replace(search, new))
        part = search.removesuffix("\n").split("\n")
        lines = text.split("\n")
        places = [at for at in range(len(lines) - len(part) + 1) if lines[at : at + len(part)] == part]
        if count and len(places) != 1:
            at = [text.count("\n", 0, match.start()) + 1 for match in re.finditer(re.escape(search), text)]
            near = ", ".join(map(str, at[:_MAX_PLACES]))
            raise ToolRefused(f"Not applied: the text to find occurs {count} times, at lines {near}.")
        hunk = Hunk(
            path=arguments.path,
            kind="change",
            search=tuple(search.rstrip("\n").split("\n")),
            replace=tuple(new.removesuffix("\n").split("\n")) if new else (),
            source="block",
        )
        return self._propose(ParsedEdits(hunks=(hunk,), malformed=()))

    def _insert(self, arguments: InsertArguments) -> ToolOutcome:
        there = self._index.workspace.read(arguments.path).text
        lines = contents(there)
        if not 0 <= arguments.after <= len(lines):
            raise ToolRefused(
                f"Not applied: the file has {len(lines)} lines, so none can follow {arguments.after}."
            )
        lines[arguments.after : arguments.after] = contents(arguments.text)
        end = "\n" if there.endswith("\n") or not there else ""
        return self._write_text(arguments.path, there, "\n".join(lines) + end)

    def _write(self, arguments: WriteArguments) -> ToolOutcome:
        workspace = self._index.workspace
        if workspace.exists(arguments.path):
            there = workspace.read(arguments.path).text
            if there.strip():
                return self._write_text(arguments.path, there, arguments.text)
        final = None if arguments.text.endswith("\n") or not arguments.text else False
        hunk = Hunk(
            path=arguments.path,
            kind="create",
            replace=tuple(contents(arguments.text)),
            source="block",
            final_newline=final,
        )
        return self._propose(ParsedEdits(hunks=(hunk,), malformed=()))

    def _write_text(self, path: str, there: str, text: str) -> ToolOutcome:
        """Propose the smallest change that turns the file into this text; its line endings stay."""
        old, new = contents(there), contents(text)
        first = 0
        while first < min(len(old), len(new)) and old[first] == new[first]:
            first += 1
        last = 0
        while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
            last += 1
        while first and not any(line.strip() for line in old[first : len(old) - last]):
            first -= 1  # a hunk needs a line with text to be located
        while last and not any(line.strip() for line in old[first : len(old) - last]):
            last -= 1
        final = None if there.endswith("\n") == text.endswith("\n") else text.endswith("\n")
        if final is not None:
            last = 0
        hunk = Hunk(
            path=path,
            kind="change",
            search=tuple(old[first : len(old) - last]),
            replace=tuple(new[first : len(new) - last]),
            source="block",
            final_newline=final,
        )
        return self._propose(ParsedEdits(hunks=(hunk,), malformed=()), picked={0: first + 1})

    def _move(self, arguments: MoveArguments) -> ToolOutcome:
        hunk = Hunk(path=arguments.path, kind="move", source="patch", to=arguments.to)
        return self._propose(ParsedEdits(hunks=(hunk,), malformed=()))

    def _delete(self, arguments: DeleteArguments) -> ToolOutcome:
        hunk = Hunk(path=arguments.path, kind="delete", source="patch")
        return self._propose(ParsedEdits(hunks=(hunk,), malformed=()))

    def _patch(self, arguments: PatchArguments) -> ToolOutcome:
        text = f"{arguments.path}\n{arguments.text}" if arguments.path else arguments.text
        with self._index.lock:
            paths = frozenset(self._index.database.paths())
        answer = parse_answer(text if text.endswith("\n") else f"{text}\n", paths)
        if not answer.hunks and not answer.malformed:
            raise ToolRefused("Not applied: the text contains no edit that can be read.")
        return self._propose(answer)

    def _propose(self, answer: ParsedEdits, picked: dict[int, int] | None = None) -> ToolOutcome:
        """Apply edits with the user's consent: all of them or none."""
        proposal = self._edits.propose(answer, picked)
        if proposal.malformed:
            raise ToolRefused(f"Not applied: {proposal.malformed[0].reason}.")
        if proposal.refused:
            refused = proposal.refused[0]
            near = f" Lines near it: {', '.join(map(str, refused.candidates))}." if refused.candidates else ""
            raise ToolRefused(f"Not applied: {refused.reason.removesuffix('.')}.{near}")
        for file in proposal.files:
            self._consented(file)
        paths = ", ".join(file.path for file in proposal.files)
        self._index.update(self._edits.apply(proposal, label=f"agent: {paths}"[:80], allow_uncommitted=True))
        return ToolOutcome(f"Applied to {paths}.")

    def _consented(self, file: FileProposal) -> None:
        """Show one file's change. Raises: ToolRefused: the user declined it."""
        hunks = [outcome.hunk for outcome in file.result.outcomes]
        is_deleted = any(hunk.kind == "delete" for hunk in hunks)
        before = file.before.text if file.before else ""
        diff = "".join(
            difflib.unified_diff(
                before.splitlines(keepends=True),
                [] if is_deleted else file.result.text.splitlines(keepends=True),
                file.path,
                file.path,
                n=3,
            )
        )
        to = next((hunk.to for hunk in hunks if hunk.to is not None), None)
        path = shown_line(file.path)
        title = because("change_file", path=path) if file.before else because("create_file", path=path)
        key = f"edit:{file.path}"
        # Permission to edit a file during the session does not include moving or deleting it.
        if is_deleted:
            title, key = because("delete_file", path=path), f"Delete:{file.path}:{to}"
        elif to:
            title, key = because("move_file", path=path, to=shown_line(to)), f"Move:{file.path}:{to}"
        warning = self._edits.warning(file.path)
        request = ConsentRequest(
            kind="edit",
            title=title,
            detail=shown_text(diff),
            key=key,
            warnings=(warning,) if warning is not None else (),
        )
        if self._consent.remembers(request):
            self._on_event(Edited(file.path, diff))
        if not self._consent.given(request):
            raise ToolRefused("The person declined this edit.")

    def stop_command(self) -> None:
        """End the running command. The agent continues with its output so far. Thread-safe."""
        self._stopped.set()

    def _run(self, arguments: RunArguments) -> ToolOutcome:
        if not arguments.argv or not arguments.argv[0].strip():
            raise ToolRefused("argv must name a program.")
        openings: sandbox.SandboxPermissions | None = sandbox.SandboxPermissions(
            network=arguments.network, home=arguments.home
        )
        lacking = sandbox.missing()
        if lacking is not None:
            openings = None
        request = ConsentRequest(
            kind="run",
            title=because("run_command_in_sandbox") if openings else because("run_command"),
            detail=shown_argv(arguments.argv),
            key="run:" + json.dumps([arguments.argv, arguments.network, arguments.home]),
            warnings=(*_warnings_for(arguments.argv), *_reach(openings, lacking)),
        )
        if not self._consent.given(request):
            raise ToolRefused("The person declined this command.")
        # NaN would pass through `min` and `max`.
        requested_s = arguments.timeout_s if math.isfinite(arguments.timeout_s) else _DEFAULT_TIMEOUT_S
        timeout_s = min(max(requested_s, 1.0), _MAX_TIMEOUT_S)
        root = self._index.workspace.root
        self._stopped.clear()
        self._on_event(CommandStarted(shown_argv(arguments.argv)))
        try:
            done = run_command(
                arguments.argv,
                root,
                timeout_s,
                openings,
                lambda: self._cancelled.is_set() or self._stopped.is_set(),
                on_output=lambda text: self._on_event(Printed(text)),
            )
        except (OSError, ValueError):  # it could not be started
            self._on_event(CommandEnded(None, 0.0))
            raise
        self._on_event(CommandEnded(done.exit_code, done.elapsed_s))
        with self._index.lock:
            self._index.refresh()
        stopped = "was stopped by the person" if self._stopped.is_set() else "was stopped"
        ended = stopped if done.exit_code is None else f"ended with code {done.exit_code}"
        return ToolOutcome(
            f"The command {ended} after {done.elapsed_s:.1f} s.\n{done.output}", ok=done.exit_code == 0
        )

    def _plan(self, arguments: PlanArguments) -> ToolOutcome:
        items = arguments.items[:_MAX_PLAN]
        self._on_event(Planned(items))
        return ToolOutcome("The plan is shown.")


def _is_pattern(text: str) -> bool:
    return re.search(r"[\\|^$*+?\[{(]", text) is not None


def _reach(openings: sandbox.SandboxPermissions | None, lacking: Reason | None) -> tuple[Reason, ...]:
    """What the command can access beyond the project folder."""
    if openings is None:
        return (because("no_sandbox", why=lacking),)
    weak = sandbox.weakness()
    request = None
    if openings.network and openings.home:
        request = because("wants_network_and_home")
    elif openings.network:
        request = because("wants_network")
    elif openings.home:
        request = because("wants_home")
    return tuple(reason for reason in (request, weak) if reason is not None)


def _warnings_for(argv: Sequence[str]) -> tuple[Reason, ...]:
    """A warning about a suspicious command line, if it is one."""
    outside = [w for w in argv[1:] if w.startswith(("/", "~")) or ".." in w.split("/")]
    if any(not word.isprintable() for word in argv):
        return (because("command_invisible"),)
    if argv[0].rsplit("/", 1)[-1] in {"sh", "bash", "zsh", "cmd", "powershell", "sudo", "eval"}:
        return (because("command_is_shell"),)
    if outside:
        return (because("command_outside", places=", ".join(outside[:3])),)
    return ()
