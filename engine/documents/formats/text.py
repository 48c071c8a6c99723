"""Plain text, markdown and source code."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from msgspec.structs import replace

from engine.documents.formats.pseudo_pages import SAMPLE_BYTES, decoded, in_parts, paragraphs, reject_binary
from engine.documents.types import PART_CHARS, BadDocument, Block, Page

_JSON = frozenset({".json", ".jsonc", ".jsonl", ".ndjson", ".geojson"})
_CODE_LINES = 40
_OUTPUT_CHARS = 4000
_MEAN_LINE_CHARS = 400
# So many characters without a space are data in letters (base64). Only the beginning is read, and a mark follows.
_DATA_CHARS = 2000
_DATA = re.compile(rf"[!-~]{{{_DATA_CHARS},}}")
_ESCAPES = re.compile(r"(?<!\\)(?:\\u[0-9a-fA-F]{4})+")
# "CHAPTER 12. The Whale", "Part II", "3.2 Results" as a separate paragraph.
_HEADING = re.compile(
    r"(?:(?:chapter|part|book|section|appendix)\s+[\divxlc]+\b.{0,80}|\d+(?:\.\d+)+\.?\s+\S.{0,80})$", re.IGNORECASE
)
_UNDERLINE = re.compile(r"([=\-~^*#\"'])\1{2,}$")
_DEFINITION = re.compile(
    r"\s{0,4}(?:export\s+|public\s+|private\s+|protected\s+|static\s+|async\s+|pub\s+|final\s+|abstract\s+)*"
    r"(?:def|class|func|fn|function|struct|enum|trait|impl|interface|module|namespace|type)\s+([\w.:<>]+)"
)


def text(path: Path) -> Iterator[Page]:
    """Paragraphs; a line is a heading if it is underlined or looks like one."""
    with path.open("rb") as file:
        reject_binary(file.read(SAMPLE_BYTES))
    yield from in_parts(_plain(_without_data(decoded(path.read_bytes()))))


def _plain(source: str) -> Iterator[Block]:
    for block in paragraphs(source, 1):
        lines = block.text.split("\n")
        if len(lines) >= 2 and _UNDERLINE.fullmatch(lines[1].strip()) and len(lines[0]) <= 100:  # noqa: PLR2004 - title, line
            level = 1 + "=-~^\"'*#".find(lines[1].strip()[0])
            yield Block("heading", lines[0].strip(), max(level, 1), block.line)
            rest = "\n".join(lines[2:])
            if rest.strip():
                yield Block("text", rest, line=block.line + 2)
        elif len(lines) == 1 and _HEADING.match(lines[0].strip()):
            yield Block("heading", lines[0].strip(), 1, block.line)
        else:
            yield block


def markdown(path: Path) -> Iterator[Page]:
    """Blocks of the Markdown source; tables and code blocks are not split."""
    yield from in_parts(_markdown(decoded(path.read_bytes())))


def _markdown(source: str) -> Iterator[Block]:
    lines = source.split("\n")
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(source)
    done = 0
    for token, after in zip(tokens, [*tokens[1:], None], strict=False):
        if token.map is None or token.level != 0 or token.map[0] < done:
            continue
        first, last = token.map
        raw = "\n".join(lines[first:last]).strip("\n")
        done = last
        if not raw.strip():
            continue
        if token.type == "heading_open" and after is not None:
            yield Block("heading", after.content.strip(), int(token.tag[1:]), first + 1)
        elif token.type == "table_open":
            yield Block("table", raw, line=first + 1)
        elif token.type in ("fence", "code_block"):
            yield Block("code", raw, line=first + 1)
        else:
            yield from paragraphs(raw, first + 1)


def code(path: Path) -> Iterator[Page]:
    """Source code split by definitions."""
    source, has_lines = decoded(path.read_bytes()), True
    if path.suffix.lower() in _JSON:
        source, has_lines = _unfolded(source)
    lines = source.split("\n")
    if len(source) / max(len(lines), 1) > _MEAN_LINE_CHARS:
        # Its words would only add noise.
        raise BadDocument(f"it is generated: its lines have more than {_MEAN_LINE_CHARS} characters on average")
    yield from in_parts(_code(lines) if has_lines else (replace(block, line=0) for block in _code(lines)))


def notebook(path: Path) -> Iterator[Page]:
    """Cells of a Jupyter notebook: Markdown, code and printed output. Raises: BadDocument: it is damaged."""
    try:
        cells = json.loads(decoded(path.read_bytes()))["cells"]
        parts = [(cell["cell_type"], _joined(cell["source"]), list(_outputs(cell))) for cell in cells]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise BadDocument("it is damaged, or not a notebook") from error
    yield from in_parts(block for part in parts for block in _cell(*part))


def _cell(kind: str, source: str, outputs: list[str]) -> Iterator[Block]:
    if kind == "markdown":  # its lines are not those of the file
        yield from (replace(block, line=0) for block in _markdown(source))
    elif source.strip():
        yield Block("code", source)
    for output in outputs:
        yield from paragraphs(output[:_OUTPUT_CHARS])


def _outputs(cell: dict[str, Any]) -> Iterator[str]:
    """The printed and shown text of a cell; images are omitted."""
    for output in cell.get("outputs", ()):
        yield _joined(output.get("text") or output.get("data", {}).get("text/plain") or "")


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _unfolded(source: str) -> tuple[str, bool]:
    """JSON or JSON Lines with readable letters and without long lines, and whether its lines are the file's own.

    A single long line is data, not generated code, so it is written with one value per line.
    """
    if max(map(len, source.split("\n"))) <= _MEAN_LINE_CHARS:
        return _ESCAPES.sub(_unescaped, source), True
    try:
        return json.dumps(json.loads(source), ensure_ascii=False, indent=1), False
    except (ValueError, RecursionError):
        return "\n".join(map(_line_unfolded, source.split("\n"))), False


def _unescaped(escapes: re.Match[str]) -> str:
    text = str(json.loads(f'"{escapes.group()}"'))
    return text if text.isprintable() and not {'"', "\\"} & set(text) else escapes.group()


def _line_unfolded(line: str) -> str:
    try:
        return json.dumps(json.loads(line), ensure_ascii=False, indent=1)
    except (ValueError, RecursionError):
        return line


def _without_data(text: str) -> str:
    return _DATA.sub(lambda data: f"{data.group()[:_DATA_CHARS]} […]", text)


def _code(lines: list[str]) -> Iterator[Block]:
    part: list[str] = []
    began, size = 1, 0
    for number, line in enumerate(lines, 1):
        match = _DEFINITION.match(line)
        ends = bool(match) or not line.strip()
        if part and (
            (match and size > PART_CHARS // 6) or (len(part) >= _CODE_LINES and ends) or size > PART_CHARS // 2
        ):
            if "".join(part).strip():
                yield Block("code", "\n".join(part).strip("\n"), line=began)
            part, size = [], 0
        if match:
            yield from _with_heading(part, began, match.group(1), number)
            if part:
                part, size = [], 0
        if not part:
            began = number
        part.append(_without_data(line.rstrip()))
        size += len(line)
    if "".join(part).strip():
        yield Block("code", "\n".join(part).strip("\n"), line=began)


def _with_heading(lines: list[str], began: int, name: str, line: int) -> Iterator[Block]:
    if "".join(lines).strip():
        yield Block("code", "\n".join(lines).strip("\n"), line=began)
    yield Block("heading", name, 3, line)
