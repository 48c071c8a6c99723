"""Text out of files that a user attaches to a chat. Formats that need a parser are read in a child process."""

import contextlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from devices.child_command import child_command

# Larger than any context there is; keeps a mistaken drop of a disk image from filling memory.
MAX_TEXT_BYTES = 8 << 20
MAX_FILE_BYTES = 64 << 20
MAX_IMAGE_BYTES = 20 << 20
_CHILD_SECONDS = 60
# What an archive may unpack to; its XML takes some ten times as much when it is parsed.
MAX_INFLATED_BYTES = 128 << 20
_CHILD_BYTES = 2 << 30
IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
_PARSED = frozenset({".pdf", ".docx"})


class DocumentError(Exception):
    """A file that cannot be attached; `reason` says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be attached: {reason}")
        self.name = name
        self.reason = reason


@dataclass(frozen=True)
class Document:
    """What is put into the context: text, or the bytes of an image."""

    name: str
    mime: str
    text: str = ""
    data: bytes | None = None


def read(path: Path) -> Document:
    """Read a text, code, PDF or Word file, or an image.

    Raises: DocumentError: not a file, too large, not text, damaged, or encrypted.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise DocumentError(path.name, "it is not a file")
    except OSError as error:
        raise DocumentError(path.name, error.strerror or str(error)) from error
    suffix = path.suffix.lower()
    if suffix in IMAGES:
        return Document(path.name, IMAGES[suffix], data=_bytes(path, size, MAX_IMAGE_BYTES))
    if suffix in _PARSED:
        if size > MAX_FILE_BYTES:
            raise DocumentError(path.name, f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
        return Document(path.name, "text/plain", _in_child(path))
    raw = _bytes(path, size, MAX_TEXT_BYTES)
    if b"\0" in raw:
        raise DocumentError(path.name, "it is not a text file")
    return Document(path.name, "text/plain", raw.decode("utf-8", errors="replace"))


def _bytes(path: Path, size: int, limit: int) -> bytes:
    if size > limit:
        raise DocumentError(path.name, f"it is larger than {limit >> 20} MiB")
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError as error:
        raise DocumentError(path.name, error.strerror or str(error)) from error


def _in_child(path: Path) -> str:
    """Parse in a process of its own: a hostile file can cost that process, not the window."""
    try:
        done = subprocess.run(  # a fixed module of ours with one path
            child_command("app.documents", str(path)),
            cwd=Path(__file__).resolve().parents[1],
            capture_output=True,
            timeout=_CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DocumentError(path.name, f"reading it took longer than {_CHILD_SECONDS} s") from None
    if done.returncode != 0:
        raise DocumentError(path.name, "it is damaged, or not what its name says")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise DocumentError(path.name, answer["error"])
    text = str(answer["text"])
    if not text.strip():
        raise DocumentError(path.name, "there is no text in it (a scan has only pictures of text)")
    return text


def _pdf(path: Path) -> str:
    from pypdf import PdfReader  # noqa: PLC0415 - only the child that needs it

    reader = PdfReader(path)
    if reader.is_encrypted and not reader.decrypt(""):
        raise DocumentError(path.name, "it is encrypted")
    return _joined(page.extract_text() for page in reader.pages)


def _docx(path: Path) -> str:
    from docx import Document as Word  # noqa: PLC0415 - only the child that needs it

    with zipfile.ZipFile(path) as archive:
        inflated = sum(member.file_size for member in archive.infolist())
    if inflated > MAX_INFLATED_BYTES:
        raise DocumentError(path.name, f"it inflates to {inflated >> 20} MiB, more than {MAX_INFLATED_BYTES >> 20}")
    word = Word(str(path))
    lines = [paragraph.text for paragraph in word.paragraphs]
    for table in word.tables:
        lines.extend(" | ".join(cell.text for cell in row.cells) for row in table.rows)
    return _joined(lines)


def _joined(parts: object) -> str:
    kept: list[str] = []
    size = 0
    for part in parts:  # type: ignore[attr-defined]  # any iterable of text
        kept.append(part)
        size += len(part)
        if size > MAX_TEXT_BYTES:
            break
    return "\n".join(kept)


def _bound_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource  # noqa: PLC0415 - POSIX only

        resource.setrlimit(resource.RLIMIT_AS, (_CHILD_BYTES, _CHILD_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _main(path: Path) -> None:
    _bound_memory()
    readers: dict[str, Callable[[Path], str]] = {".pdf": _pdf, ".docx": _docx}
    try:
        answer = {"text": readers[path.suffix.lower()](path)}
    except DocumentError as error:
        answer = {"error": error.reason}
    except MemoryError:
        answer = {"error": f"reading it needs more than {_CHILD_BYTES >> 30} GiB of memory"}
    except Exception as error:  # noqa: BLE001 - whatever a damaged file does to a parser is a reason
        answer = {"error": f"it could not be read ({type(error).__name__})"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
