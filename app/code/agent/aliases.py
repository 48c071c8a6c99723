"""Tool names and arguments that models were trained on, as calls of this agent's own tools.

Source: the tools of Claude (bash, str_replace_editor and its successors), Claude Code, Codex (shell, apply_patch,
update_plan), Cline, Cursor, OpenHands, Gemini CLI and Qwen Code.
"""

import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

from app.tools.types import ToolRefused

Arguments = dict[str, Any]

_PATH: Final = (
    "path",
    "file_path",
    "filepath",
    "filename",
    "file",
    "target_file",
    "absolute_path",
    "relative_path",
)
_OLD: Final = ("search", "old_str", "old_string", "old_text", "find", "target")
_NEW: Final = ("replace", "new_str", "new_string", "new_text", "replacement", "insert_text")
_TEXT: Final = ("text", "content", "contents", "file_text", "new_str", "insert_text", "code")
# Folders of a command that mean the project folder.
_HERE: Final = (None, "", ".", "./")
# A longer time limit is in milliseconds.
_LONGEST_S: Final = 3600.0


def translated(name: str, arguments: Any) -> tuple[str, Any]:
    """This agent's tool and arguments for a call; unchanged if the call uses them already.

    Raises: ToolRefused: no tool does what the call requests.
    """
    if not isinstance(arguments, dict):
        return name, arguments
    own = own_tool(name) or name
    rename = _ARGUMENTS.get(own)
    if own == "editor":
        return _editor(arguments)
    return (own, arguments) if rename is None else rename(own, arguments)


def own_tool(name: str) -> str | None:
    """This agent's tool for a name, as `translated` chooses it; None if there is none."""
    plain = name.rpartition(".")[2].rpartition("/")[2].lower()
    return _NAMES.get(plain.replace("-", "").replace("_", ""))


def _take(arguments: Mapping[str, Any], names: tuple[str, ...], default: Any = None) -> Any:
    return next((arguments[name] for name in names if name in arguments), default)


def _rest(arguments: Mapping[str, Any], *used: tuple[str, ...]) -> Arguments:
    """Arguments with unknown names; the tool refuses them."""
    used_names = {name for names in used for name in names} | _COMMENTS
    return {name: value for name, value in arguments.items() if name not in used_names}


# Arguments that only describe a call.
_COMMENTS: Final = frozenset(
    {"description", "explanation", "instructions", "security_risk", "thought", "reason", "command"}
)


def _some(**values: Any) -> Arguments:
    return {name: value for name, value in values.items() if value is not None}


def _number(value: Any) -> Any:
    """The number that a model wrote in quotes; any other value unchanged."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _with_path(own: str, arguments: Arguments) -> tuple[str, Arguments]:
    return own, _rest(arguments, _PATH) | _some(path=_take(arguments, _PATH))


def _list(own: str, arguments: Arguments) -> tuple[str, Arguments]:
    names = (*_PATH, "dir", "dir_path", "directory", "folder", "relative_workspace_path", "target_directory")
    return own, _rest(arguments, names, ("recursive", "ignore", "depth")) | _some(path=_take(arguments, names))


def _read(own: str, arguments: Arguments) -> tuple[str, Arguments]:
    starts = ("first", "offset", "start_line", "start_line_one_indexed", "line_start", "start")
    first = _number(_take(arguments, starts))
    last = _take(arguments, ("last", "end_line", "end_line_one_indexed_inclusive", "line_end", "end"))
    limit = _number(arguments.get("limit"))
    shown = arguments.get("view_range")
    if isinstance(shown, list) and len(shown) == 2:  # noqa: PLR2004 - first and last
        first, last = shown[0], None if shown[1] == -1 else shown[1]
    if isinstance(limit, int) and last is None:
        last = (first if isinstance(first, int) and first > 0 else 1) + limit - 1
    names = ("first", "last", "offset", "limit", "start_line", "end_line", "start_line_one_indexed", "start", "end")
    more = ("end_line_one_indexed_inclusive", "line_start", "line_end", "view_range", "should_read_entire_file")
    return own, _rest(arguments, _PATH, names, more) | _some(path=_take(arguments, _PATH), first=first, last=last)


def _search(own: str, arguments: Arguments) -> tuple[str, Arguments]:
    names = ("text", "query", "pattern", "regex", "search_term", "q")
    more = (
        "path",
        "glob",
        "include",
        "include_pattern",
        "exclude_pattern",
        "case_sensitive",
        "output_mode",
        "type",
    )
    return own, _rest(arguments, names, more) | _some(text=_take(arguments, names))


def _edit(own: str, values: Arguments) -> tuple[str, Arguments]:
    if "edits" in values or "blocks" in values:
        raise ToolRefused("Send one edit in each call: path, search and replace.")
    if _take(values, ("patch", "diff")) is not None:
        return _patch("patch", values)
    if _take(values, _OLD) is None and _take(values, _TEXT) is not None and "replace" not in values:
        return _write("write", values)
    names = ("all", "replace_all", "allow_multiple", "expected_replacements")
    every = _take(values, ("all", "replace_all", "allow_multiple"))
    if every is None and isinstance(values.get("expected_replacements"), int):
        every = values["expected_replacements"] > 1
    return own, _rest(values, _PATH, _OLD, _NEW, names) | _some(
        path=_take(values, _PATH), search=_take(values, _OLD, ""), replace=_take(values, _NEW, ""), all=every
    )


def _write(own: str, values: Arguments) -> tuple[str, Arguments]:
    more = ("overwrite", "create_dirs", "line_count")
    return own, _rest(values, _PATH, _TEXT, more) | _some(path=_take(values, _PATH), text=_take(values, _TEXT))


def _insert(own: str, arguments: Arguments) -> tuple[str, Arguments]:
    after = ("after", "insert_line", "line", "line_number", "insert_after_line")
    return own, _rest(arguments, _PATH, _TEXT, after) | _some(
        path=_take(arguments, _PATH), after=_take(arguments, after), text=_take(arguments, _TEXT)
    )


def _move(own: str, arguments: Arguments) -> tuple[str, Arguments]:
    old = (*_PATH, "source", "from", "old_path", "src", "source_path")
    new = ("to", "destination", "new_path", "dest", "dst", "target", "destination_path", "target_path")
    return own, _rest(arguments, old, new) | _some(path=_take(arguments, old), to=_take(arguments, new))


def _patch(own: str, arguments: Arguments) -> tuple[str, Arguments]:
    names = ("text", "patch", "input", "diff", "patchText", "patch_text")
    return own, _rest(arguments, _PATH, names) | _some(path=_take(arguments, _PATH), text=_take(arguments, names))


def _run(own: str, arguments: Arguments) -> tuple[str, Arguments]:
    names = ("argv", "command", "cmd", "script", "commands")
    command = _take(arguments, names)
    if arguments.get("restart"):
        raise ToolRefused("Every command starts in a new process; there is nothing to restart.")
    folder = _take(arguments, ("workdir", "cwd", "working_directory", "dir_path"))
    if isinstance(command, str):
        argv: Any = _shell(command, "" if folder in _HERE else str(folder))
    elif folder in _HERE:
        argv = command
    else:
        raise ToolRefused("Commands start in the project folder; name other folders in the command.")
    limit = _take(arguments, ("timeout_s", "timeout", "timeout_ms", "timeout_seconds"))
    if isinstance(limit, int | float) and (limit > _LONGEST_S or "timeout_ms" in arguments):
        limit = limit / 1000
    more = (
        "workdir",
        "cwd",
        "working_directory",
        "dir_path",
        "timeout_s",
        "timeout",
        "timeout_ms",
        "timeout_seconds",
    )
    flags = ("restart", "run_in_background", "is_background", "requires_approval", "justification")
    if arguments.get("run_in_background") or arguments.get("is_background"):
        raise ToolRefused("A command cannot go on in the background; it has to end by itself.")
    return own, _rest(arguments, names, more, flags) | _some(argv=argv, timeout_s=limit)


def _shell(command: str, folder: str) -> list[str]:
    """A shell that runs the command in a folder; empty: the project folder."""
    if os.name == "nt":
        return ["cmd", "/c", f'cd /d "{folder}" && {command}' if folder else command]
    return ["bash", "-c", f"cd -- {shlex.quote(folder)} && {command}" if folder else command]


def _plan(own: str, arguments: Arguments) -> tuple[str, Arguments]:
    items = _take(arguments, ("items", "plan", "todos", "tasks"))
    states = {"pending": "open", "in_progress": "doing", "completed": "done", "cancelled": "done"}

    def item(entry: Any) -> Any:
        if isinstance(entry, str):
            return {"text": entry}
        if not isinstance(entry, dict):
            return entry
        state = _take(entry, ("state", "status"), "open")
        return {
            "text": _take(entry, ("text", "step", "content", "title", "task")),
            "state": states.get(str(state), state),
        }

    return own, {"items": [item(entry) for entry in items] if isinstance(items, list) else items}


def _editor(arguments: Arguments) -> tuple[str, Arguments]:
    """The editor tool of Claude: one tool whose `command` says what to do."""
    command = arguments.get("command")
    tools = {"view": "read", "create": "write", "str_replace": "edit", "insert": "insert"}
    own = tools.get(str(command))
    if own is None:
        raise ToolRefused(f"The editor has no command {command!r}: use view, create, str_replace or insert.")
    rest = {name: value for name, value in arguments.items() if name != "command"}
    if own == "read" and rest.get("path") in (".", "./", "/"):
        return "list", {}
    return _ARGUMENTS[own](own, rest)


_ARGUMENTS: Final[dict[str, Callable[[str, Arguments], tuple[str, Arguments]]]] = {
    "list": _list,
    "read": _read,
    "search": _search,
    "edit": _edit,
    "write": _write,
    "insert": _insert,
    "move": _move,
    "delete": _with_path,
    "patch": _patch,
    "run": _run,
    "plan": _plan,
}
_ALIASES: Final = {
    "list": "list ls listdir listdirectory listfiles listfolder",
    "read": "read readfile view viewfile cat openfile getfilecontents",
    "search": "search grep grepsearch searchfiles searchcode searchfilecontent codebasesearch ripgrep findinfiles",
    "edit": "edit strreplace editfile replace replaceinfile searchreplace searchandreplace multiedit",
    "write": "write writefile writetofile createfile newfile create savefile",
    "insert": "insert insertlines insertcontent insertatline",
    "move": "move movefile rename renamefile mv",
    "delete": "delete deletefile removefile remove rm",
    "patch": "patch applypatch applydiff",
    "run": "run bash shell exec runcommand executecommand runshellcommand runterminalcmd terminal executebash",
    "plan": "plan updateplan todowrite writetodos todo",
    "editor": "strreplaceeditor strreplacebasededittool texteditor",
}
_NAMES: Final = {alias: own for own, names in _ALIASES.items() for alias in names.split()}
