"""From pages to passages: cut by structure, never across pages, tables whole as long as that is useful."""

from collections.abc import Iterator
from typing import Final

from engine.documents.types import Block, Chunk, Page, PageRead

# About 220 tokens: what small embedding models were trained to read (all-MiniLM-L6-v2: 256).
TARGET_CHARS: Final = 900
MOST_CHARS: Final = 1300
# A larger table is cut between rows, and each piece repeats the head.
TABLE_CHARS: Final = 4000


class Cutter:
    """Cuts one document's pages in order; knows under which headings it is."""

    def __init__(self) -> None:
        self._headings: list[tuple[int, str]] = []

    def cut(self, page: Page) -> PageRead:
        """One page as passages."""
        return PageRead(page.number, page.label, tuple(self._chunks(page)), page.problem)

    def _chunks(self, page: Page) -> Iterator[Chunk]:
        held: list[Block] = []
        path = self._path()

        def whole() -> Iterator[Chunk]:
            text = "\n\n".join(block.text for block in held)
            if text.strip():
                kind = held[-1].kind if len(held) == 1 else "text"
                yield Chunk(path, kind, text, held[0].line)
            held.clear()

        for block in page.blocks:
            if block.kind == "heading":
                yield from whole()
                self._enter(block)
                path = self._path()
                held.append(block)
                continue
            for piece in _pieces(block):
                if sum(len(b.text) for b in held) + len(piece.text) > MOST_CHARS and _says_something(held):
                    yield from whole()
                held.append(piece)
                if sum(len(b.text) for b in held) >= TARGET_CHARS:
                    yield from whole()
        yield from whole()

    def _enter(self, heading: Block) -> None:
        while self._headings and self._headings[-1][0] >= heading.level:
            self._headings.pop()
        self._headings.append((heading.level, heading.text[:120]))

    def _path(self) -> str:
        return " » ".join(text for _, text in self._headings[-4:])


def _says_something(held: list[Block]) -> bool:
    """More than a heading, which belongs to what follows it."""
    return any(block.kind != "heading" for block in held)


def _pieces(block: Block) -> Iterator[Block]:
    if block.kind == "table":
        yield from _table(block)
    elif len(block.text) <= MOST_CHARS:
        yield block
    else:
        yield from _long(block)


def _table(block: Block) -> Iterator[Block]:
    rows = block.text.split("\n")
    head = rows[:2] if len(rows) > 1 and set(rows[1]) <= set("|-: ") else rows[:1]
    held, size, line = list(head), sum(map(len, head)), block.line
    for number, row in enumerate(rows[len(head) :], len(head)):
        if size + len(row) > TABLE_CHARS and len(held) > len(head):
            yield Block("table", "\n".join(held), line=line)
            held, size = list(head), sum(map(len, head))
            line = block.line + number if block.line else 0
        held.append(row[:TABLE_CHARS])
        size += len(row)
    yield Block("table", "\n".join(held), line=line)


def _long(block: Block) -> Iterator[Block]:
    """Cut at line ends, then at ends of sentences, then anywhere, each piece near the target."""
    text, start, line = block.text, 0, block.line
    while len(text) - start > MOST_CHARS:
        # A piece of the text at a time: what is left of a file without line ends may have 100 million characters.
        window = text[start : start + MOST_CHARS]
        cut = -1
        for mark in ("\n", ". ", "? ", "! ", "; ", " "):
            found = window.rfind(mark, TARGET_CHARS // 2)
            if found > 0:
                cut = found + len(mark)
                break
        cut = cut if cut > 0 else MOST_CHARS
        piece = window[:cut]
        yield Block(block.kind, piece.strip("\n"), line=line)
        line += piece.count("\n") if line else 0
        start += cut
    rest = text[start:]
    if rest.strip():
        yield Block(block.kind, rest.strip("\n"), line=line)
