"""The child process that reads and parses project files: grammars are native code, files are not trusted.

Frames on stdin and stdout are msgpack: a request is a list of paths, the answer one `ParsedFile` for each, in
order. Run as `python -m app.code.index.worker ROOT`.
"""

import contextlib
import sys
from pathlib import Path

import msgspec

from app.code.index.languages import language_of
from app.code.index.symbols import Chunk, Symbol, chunks_of, symbols_of
from app.code.index.walk import MAX_INDEXED_BYTES
from app.code.workspace import Workspace
from devices.errors import TesseraError
from engine.core.frames import claim_stdio, read_frame, write_frame

# Address space of one worker. Measured: log entry "Project index".
_MEMORY_LIMIT_BYTES = 2 << 30
# Lines longer than this on average are machine-made; they would fill the index with noise.
_MAX_MEAN_LINE_CHARS = 400


class ParsedFile(msgspec.Struct, frozen=True):
    """What one file holds; `problem` says why it could not be used."""

    path: str
    language: str = "text"
    num_lines: int = 0
    symbols: list[Symbol] = []
    chunks: list[Chunk] = []
    problem: str | None = None


def parse_file(workspace: Workspace, path: str) -> ParsedFile:
    """Read and parse one file; whatever is wrong with it is part of the answer."""
    try:
        text = workspace.read(path, MAX_INDEXED_BYTES).text
    except (TesseraError, OSError) as error:
        return ParsedFile(path, problem=str(error))
    language = language_of(path)
    num_lines = text.count("\n") + 1
    if len(text) / num_lines > _MAX_MEAN_LINE_CHARS:
        return ParsedFile(path, language, num_lines, problem="its lines are too long to be written by hand")
    symbols = symbols_of(text, language)
    return ParsedFile(path, language, num_lines, symbols, chunks_of(text, symbols))


def main() -> None:
    """Serve until stdin ends."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource  # noqa: PLC0415  # POSIX only

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, sink = claim_stdio()
    workspace = Workspace(Path(sys.argv[1]))
    decoder, encoder = msgspec.msgpack.Decoder(list[str]), msgspec.msgpack.Encoder()
    while (frame := read_frame(source)) is not None:
        for path in decoder.decode(frame):
            write_frame(sink, encoder.encode(parse_file(workspace, path)))


if __name__ == "__main__":
    main()
