"""Built-in tools, disabled by default: a calculator, and a reader for allowed folders."""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from app.attachments import DocumentError, read
from app.tools.types import ToolOutcome, ToolSpec, object_schema
from devices.child_command import child_command

# The user's servers cannot have these names.
CALCULATOR: Final = "tessera:calculator"
FILES: Final = "tessera:files"
WEB: Final = "tessera:web"
MEMORY: Final = "tessera:memory"
# The source of each built-in tool.
SOURCES: Final = {
    "calculate": CALCULATOR,
    "list_folder": FILES,
    "read_file": FILES,
    "read_page": WEB,
    "remember": MEMORY,
    "web_search": WEB,
}
_LIMIT_S: Final = 6
_MAX_LINES: Final = 400
_MAX_ENTRIES: Final = 300
_MAX_CHARS: Final = 24_000
_ROOT: Final = Path(__file__).resolve().parents[2]


class Calculator:
    """Calculates with numbers and units in a child process without files or network."""

    name = CALCULATOR
    specs = (
        ToolSpec(
            "calculate",
            "Work out an expression in Python's notation: numbers, lists, sqrt, mean, assignments with ';', and "
            "units: '5 km to miles', '3*kWh / (2*hour)', '20 MiB to kB'. c_to_f and f_to_c convert temperatures.",
            object_schema(("expression",), expression={"type": "string"}),
        ),
    )

    def title(self, tool: str) -> str:
        """Display name of a tool."""
        return f"Calculator: {tool}"

    def refresh(self) -> None:
        """Do nothing: the tool never changes."""

    def call(self, tool: str, arguments: dict[str, Any]) -> ToolOutcome:
        del tool
        code = arguments.get("expression")
        if not isinstance(code, str) or not code.strip():
            return ToolOutcome("expression must be text.", ok=False)
        try:
            done = subprocess.run(
                child_command("app.tools.calculate_child"),
                cwd=_ROOT,
                input=code.encode(),
                capture_output=True,
                timeout=_LIMIT_S,
                env={},
                check=False,
            )
            answer = json.loads(done.stdout)
        except (subprocess.TimeoutExpired, ValueError):
            return ToolOutcome("It takes too long, or too much memory.", ok=False)
        return ToolOutcome(str(answer.get("text", answer.get("error"))), ok="text" in answer)


class FileReader:
    """Lists and reads files in the allowed folders; writes nothing and ignores hidden files."""

    name = FILES

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(dict.fromkeys(folder.resolve() for folder in folders if folder.is_dir()))
        folder_names = ", ".join(map(str, self._folders))
        where = {"type": "string", "description": "Absolute, or relative to the first allowed folder."}
        self.specs: tuple[ToolSpec, ...] = ()
        if self._folders:
            self.specs = (
                ToolSpec("list_folder", f"List a folder. Allowed: {folder_names}", object_schema((), path=where)),
                ToolSpec(
                    "read_file",
                    f"Read a text, PDF or Word file, at most {_MAX_LINES} lines at a time. Allowed: {folder_names}",
                    object_schema(
                        ("path",), path=where, first={"type": "integer", "description": "First line, from 1."}
                    ),
                ),
            )

    def title(self, tool: str) -> str:
        """Display name of a tool."""
        return f"Files: {tool}"

    def refresh(self) -> None:
        """Do nothing: the folders are fixed."""

    def call(self, tool: str, arguments: dict[str, Any]) -> ToolOutcome:
        work: Callable[[Path, dict[str, Any]], ToolOutcome] = self._list if tool == "list_folder" else self._read
        try:
            return work(self._allowed_path(arguments.get("path", ".")), arguments)
        except (OSError, ValueError, DocumentError) as error:
            return ToolOutcome(str(error), ok=False)

    def _allowed_path(self, text: object) -> Path:
        """Resolve a path. Raises: ValueError: it is outside the allowed folders, or hidden."""
        if not isinstance(text, str) or "\0" in text:
            raise ValueError("path must be text.")
        path = (self._folders[0] / Path(text).expanduser()).resolve()
        inside = next((folder for folder in self._folders if path.is_relative_to(folder)), None)
        if inside is None:
            raise ValueError(f"{text} is outside the allowed folders: {', '.join(map(str, self._folders))}.")
        if any(part.startswith(".") for part in path.relative_to(inside).parts):
            raise ValueError(f"{text} is hidden; hidden files are not read.")
        return path

    def _list(self, path: Path, arguments: dict[str, Any]) -> ToolOutcome:
        del arguments
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
        lines = [entry.name + "/" * entry.is_dir() for entry in entries]
        more = [f"[{len(lines) - _MAX_ENTRIES} more]"] if len(lines) > _MAX_ENTRIES else []
        return ToolOutcome("\n".join(lines[:_MAX_ENTRIES] + more) or "The folder is empty.")

    def _read(self, path: Path, arguments: dict[str, Any]) -> ToolOutcome:
        document = read(path)
        if document.data is not None:
            raise ValueError(f"{path.name} is a picture.")
        lines = document.text.removesuffix("\n").split("\n")
        first = arguments.get("first", 1)
        first = first if isinstance(first, int) and first > 0 else 1
        shown = lines[first - 1 : first - 1 + _MAX_LINES]
        text = "\n".join(shown)
        num_more = len(lines) - (first - 1 + len(shown))
        if len(text) > _MAX_CHARS:
            return ToolOutcome(f"{text[:_MAX_CHARS]}\n[cut after {_MAX_CHARS} characters]")
        return ToolOutcome(
            text + (f"\n[{num_more} more lines, from line {first + len(shown)} on]" if num_more > 0 else "")
        )
