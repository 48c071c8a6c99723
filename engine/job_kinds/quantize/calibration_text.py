"""Calibration on the user's text: folders, projects and chats become one file; a part is held out."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from engine.core.errors import InputFault
from engine.core.paths import whole_path
from engine.documents.file_types import kind_of
from engine.documents.walk import Walk
from engine.job_kinds.quantize.options import QuantizeOptions
from engine.message_catalog.reasons import because
from quantize.types import CALIBRATION

# Maximum text from one file, and in total: as much as the bundled text, so that calibration is not limited to one
# kind of text.
_FILE_BYTES = 64 << 10
_ALL_BYTES = 400_000
_PIECE_CHARS = 4096
# One chunk in this many is held out for evaluation.
_HELD_OUT_EVERY = 5
# Fewer held-out characters do not fill four windows of 512 tokens.
_LEAST_HELD_OUT_CHARS = 16_384
_MOST_FILES = 4000
_READ_BYTES = 16 << 20
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class OwnText(msgspec.Struct, frozen=True):
    """Calibration text and held-out text (None: too little text), with the number of files and characters."""

    calibration: Path
    held_out: Path | None
    files: int
    characters: int


def gather(sources: Iterable[Path], scratch: Path, chats: Iterable[str] = ()) -> OwnText:
    """Write the two files into `scratch`, readable only by their owner; equal sources give equal bytes.

    A folder contributes its text and code files, without hidden files and files in .gitignore. Half of the
    calibration text is the bundled text.

    Raises: InputFault: no text was found.
    """
    texts = [t for source in sources for t in _texts(source)]
    files = len(texts)
    texts += [t for t in chats if t.strip()]
    pieces = [t[i : i + _PIECE_CHARS] for t in _fairly(texts) for i in range(0, len(t), _PIECE_CHARS)]
    if not pieces:
        raise InputFault(because("nothing_to_calibrate_on"), "calibration")
    judged = pieces[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]
    used = [p for i, p in enumerate(pieces) if (i + 1) % _HELD_OUT_EVERY]
    usual = CALIBRATION.read_text(encoding="utf-8")
    others = [usual[i : i + _PIECE_CHARS] for i in range(0, len(usual), _PIECE_CHARS)]
    mixed = [p for pair in zip_longest(used, others, fillvalue="") for p in pair if p]
    calibration = _written(scratch / "calibration.txt", mixed)
    held_out = None
    if sum(map(len, judged)) >= _LEAST_HELD_OUT_CHARS:
        held_out = _written(scratch / "held-out.txt", judged)
    return OwnText(calibration, held_out, files, sum(map(len, pieces)))


@contextmanager
def texts_of(options: QuantizeOptions) -> Iterator[QuantizeOptions]:
    """Options in which a calibration folder is replaced by temporary text files; other options are unchanged.

    Raises: InputFault: not an absolute path, or too little text to evaluate the result.
    """
    folder = whole_path(options.calibration, "calibration") if options.calibration else None
    if folder is None or not folder.is_dir():
        yield options
        return
    with TemporaryDirectory(prefix="calibration-") as scratch:
        files = gather([folder], Path(scratch))
        if files.held_out is None and options.own_text is None:
            least = _LEAST_HELD_OUT_CHARS * _HELD_OUT_EVERY
            raise InputFault(
                because("too_little_text", folder=folder.name, chars=files.characters, least=least),
                "calibration",
            )
        own = options.own_text or str(files.held_out)
        yield msgspec.structs.replace(options, calibration=str(files.calibration), own_text=own)


def _written(path: Path, pieces: list[str]) -> Path:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n\n".join(pieces))
    return path


def _fairly(texts: list[str]) -> list[str]:
    """The start of each text, with a fair share of the total limit."""
    room, pieces = _ALL_BYTES, []
    for texts_left, text in zip(range(len(texts), 0, -1), sorted(texts, key=len), strict=True):
        part = text[: room // texts_left]
        room -= len(part)
        pieces.append((text, part))
    parts = dict(pieces)
    return [parts[text] for text in texts if parts[text]]


def _texts(source: Path) -> Iterator[str]:
    files = [source] if source.is_file() else _files(source)
    # A limit per file, so that a folder of 100,000 files also stays within the total limit.
    share = max(_PIECE_CHARS, _READ_BYTES // max(len(files), 1))
    limit = _ALL_BYTES if source.is_file() else min(_FILE_BYTES, share)
    for path in files:
        try:
            with path.open("rb") as file:
                raw = file.read(limit)
        except OSError:
            continue  # deleted or not readable: use the others
        if not _BINARY.search(raw):
            text = raw.decode("utf-8", "ignore").strip()
            if text:
                yield text


def _files(folder: Path) -> list[Path]:
    """Files that are not hidden or in .gitignore, sampled evenly if there are too many.

    Git itself is not called, because the settings of an untrusted repository can name programs that it would run.
    """
    paths = [Path(file.path) for file in Walk([str(folder)]).files() if not file.skipped]
    files = [path for path in paths if kind_of(path.name) or not path.suffix]
    return files[:: max(1, -(-len(files) // _MOST_FILES))]
