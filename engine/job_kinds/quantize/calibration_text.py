"""Calibration on the user's own text: folders, projects and chats become one file, a part of it held out."""

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
from engine.documents.walk import Walk
from engine.job_kinds.quantize.options import QuantizeOptions
from quantize.types import CALIBRATION

# Text taken from one file, and from all together: as much as the text that comes with the program, so that a model
# is not fitted to one kind of text alone.
_FILE_BYTES = 64 << 10
_ALL_BYTES = 400_000
_PIECE_CHARS = 4096
# Every so many pieces one is kept for judging.
_HELD_OUT_EVERY = 5
# Fewer characters held out give no four windows of 512 tokens.
_LEAST_HELD_OUT_CHARS = 16_384
_MOST_FILES = 4000
_READ_BYTES = 16 << 20
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class OwnText(msgspec.Struct, frozen=True):
    """Two files: what to calibrate on, and what to judge by (None: too little text); and what went into them."""

    calibration: Path
    held_out: Path | None
    files: int
    characters: int


def gather(sources: Iterable[Path], scratch: Path, chats: Iterable[str] = ()) -> OwnText:
    """Write the two files into `scratch`, readable by their owner alone; the same sources give the same bytes.

    A folder gives its files of text and code, but for what is hidden or left out by .gitignore. Half of what is
    calibrated on is the text that comes with the program.
    Raises: InputFault: no text was found.
    """
    texts = [t for source in sources for t in _texts(source)]
    files = len(texts)
    texts += [t for t in chats if t.strip()]
    pieces = [t[i : i + _PIECE_CHARS] for t in _fairly(texts) for i in range(0, len(t), _PIECE_CHARS)]
    if not pieces:
        raise InputFault("There is no readable text in what was given to calibrate on.", "calibration")
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
    """The options with a folder to calibrate on made into texts, which are removed in the end; others as they are.

    Raises: InputFault: no whole path, or too little text in it to tell afterwards what was gained.
    """
    folder = whole_path(options.calibration, "calibration") if options.calibration else None
    if folder is None or not folder.is_dir():
        yield options
        return
    with TemporaryDirectory(prefix="calibration-") as scratch:
        found = gather([folder], Path(scratch))
        if found.held_out is None and options.own_text is None:
            least = _LEAST_HELD_OUT_CHARS * _HELD_OUT_EVERY
            raise InputFault(
                f"{folder.name} has {found.characters:,} characters of text; some {least:,} are needed to fit a "
                "file to it and to judge it by a part.",
                "calibration",
            )
        own = options.own_text or str(found.held_out)
        yield msgspec.structs.replace(options, calibration=str(found.calibration), own_text=own)


def _written(path: Path, pieces: list[str]) -> Path:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n\n".join(pieces))
    return path


def _fairly(texts: list[str]) -> list[str]:
    """As much of each text as fits all of them into the bound."""
    room, taken = _ALL_BYTES, []
    for left, text in zip(range(len(texts), 0, -1), sorted(texts, key=len), strict=True):
        part = text[: room // left]
        room -= len(part)
        taken.append((text, part))
    parts = dict(taken)
    return [parts[text] for text in texts if parts[text]]


def _texts(source: Path) -> Iterator[str]:
    files = [source] if source.is_file() else _files(source)
    # So much of each that all together stay within a bound that a folder of 100,000 files does not pass either.
    share = max(_PIECE_CHARS, _READ_BYTES // max(len(files), 1))
    limit = _ALL_BYTES if source.is_file() else min(_FILE_BYTES, share)
    for path in files:
        try:
            with path.open("rb") as file:
                raw = file.read(limit)
        except OSError:
            continue  # gone or not ours to read: the rest still counts
        if not _BINARY.search(raw):
            text = raw.decode("utf-8", "ignore").strip()
            if text:
                yield text


def _files(folder: Path) -> list[Path]:
    """What is neither hidden nor left out by .gitignore, from all over the folder where there are too many.

    Git itself is not asked: the settings of a repository somebody else made can name programs that it would run.
    """
    found = [Path(file.path) for file in Walk([str(folder)]).files()]
    return found[:: max(1, -(-len(found) // _MOST_FILES))]
