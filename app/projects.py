"""A project: a folder whose instructions are sent with every request of its chats."""

from pathlib import Path
from typing import Final

from app.db.records import Folder
from engine.documents.formats.pseudo_pages import decoded
from engine.documents.types import BadDocument

# Read if present, in this order. The second is skipped if it repeats or only references the first.
INSTRUCTION_FILES: Final = ("AGENTS.md", "CLAUDE.md")
# Longer instructions would fill a small context by themselves; the text marks the place where it was cut.
MAX_CHARS: Final = 16_000
_MAX_BYTES: Final = 1 << 20


def instructions_of(project: Folder) -> str:
    """The text before a chat's own system prompt: the project's instructions, then its instruction files."""
    parts = [project.instructions.strip()]
    root = Path(project.path) if project.path else None
    for name in INSTRUCTION_FILES if root is not None else ():
        text = _read(root / name) if root is not None else ""
        if text and text not in parts and text.strip("@ \n") not in INSTRUCTION_FILES:
            parts.append(text)
    return "\n\n".join(part for part in parts if part)


def folder_of(project: Folder | None) -> Path:
    """The working folder for a project's tools: its folder if it exists, else the home folder."""
    folder = Path(project.path) if project is not None and project.path else None
    return folder if folder is not None and folder.is_dir() else Path.home()


def _read(path: Path) -> str:
    """Read a text file in any encoding; return "" if there is none. Does not follow a link out of its folder."""
    try:
        if not path.is_file() or not path.resolve().is_relative_to(path.parent.resolve()):
            return ""
        with path.open("rb") as file:
            text = decoded(file.read(_MAX_BYTES)).strip()
    except (OSError, BadDocument):
        return ""
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[:MAX_CHARS]}\n[{path.name} goes on: {len(text) - MAX_CHARS} more characters were left out]"
