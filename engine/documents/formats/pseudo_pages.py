"""Parts of about one page for formats without pages; also decodes text."""

from collections.abc import Iterable, Iterator

from engine.documents.types import PART_CHARS, Block, Page, Unreadable

# A heading starts a new part if the current one has at least this length.
_LEAST_CHARS = PART_CHARS // 3
_CHAPTER_LEVEL = 2


def in_parts(blocks: Iterable[Block], first: int = 1) -> Iterator[Page]:
    """Pages numbered from `first`. A part starts at a heading if possible, never inside a block."""
    held: list[Block] = []
    size, number = 0, first
    for block in blocks:
        at_heading = block.kind == "heading" and block.level <= _CHAPTER_LEVEL and size >= _LEAST_CHARS
        if held and (at_heading or size + len(block.text) > PART_CHARS):
            moved = [held.pop()] if held[-1].kind == "heading" and len(held) > 1 else []
            yield Page(number, tuple(held), _label(held))
            held, number = moved, number + 1
            size = sum(len(b.text) for b in held)
        held.append(block)
        size += len(block.text)
    if held:
        yield Page(number, tuple(held), _label(held))


def _label(blocks: list[Block]) -> str:
    return next((b.text[:80] for b in blocks if b.kind == "heading"), "")


def decoded(raw: bytes) -> str:
    """A file's text, decoded by its BOM, as UTF-8 or as Windows-1252. Raises: Unreadable: not text."""
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if raw.startswith(mark):
            return _lines(raw.decode(encoding, errors="replace"))
    if b"\0" in raw[:65536]:
        raise Unreadable("it is not text")
    try:
        return _lines(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return _lines(raw.decode("cp1252", errors="replace"))


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def paragraphs(text: str, line: int = 1) -> Iterator[Block]:
    """Text between empty lines; overlong paragraphs (files without empty lines) are split at line ends."""
    held: list[str] = []
    began, size = line, 0
    for number, row in enumerate(text.split("\n"), line):
        if (not row.strip() or size > PART_CHARS // 2) and held:
            yield Block("text", "\n".join(held), line=began)
            held, size = [], 0
        if row.strip():
            if not held:
                began = number
            held.append(row.rstrip())
            size += len(row)
    if held:
        yield Block("text", "\n".join(held), line=began)
