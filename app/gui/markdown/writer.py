"""Writes the tokens of one top-level block at the end of a text document."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from PySide6.QtGui import (
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextLength,
    QTextList,
    QTextListFormat,
    QTextTable,
)

from app.gui.markdown.formats import CODE, Formats
from app.gui.markdown.formula_object import OBJECT_LETTER, FormulaObjects
from app.gui.markdown.parse import breakable, split_urls

if TYPE_CHECKING:
    from markdown_it.token import Token

_LINE_END = "\u2028"
# With each new item Qt looks at all of its list. Measured: 4,000 items in one list took 2 s, 8,000 took 12 s.
_LARGEST_LIST = 100
_BREAKS = frozenset({"softbreak", "hardbreak"})
_BULLETS = (
    QTextListFormat.Style.ListDisc,
    QTextListFormat.Style.ListCircle,
    QTextListFormat.Style.ListSquare,
)


class BlockWriter:
    """Holds the cursor; `fresh` says whether the block it is in is empty and may be used."""

    def __init__(self, cursor: QTextCursor, formats: Formats) -> None:
        self.cursor = cursor
        self.fresh = True
        self._formats = formats
        self._objects: FormulaObjects | None = None
        self.num_formulas = 0
        self._run: list[str] = []
        self._shape = formats.text

    def begin(self, block: QTextBlockFormat, text: QTextCharFormat, made: QTextList | None = None) -> None:
        """Start a text block; `made`: as an item of that list."""
        if made is not None:
            block.setObjectIndex(made.objectIndex())
        if self.fresh and not self.cursor.position():
            self.cursor.setBlockFormat(block)
            self.cursor.setBlockCharFormat(text)
        else:
            if (
                self.fresh
            ):  # Qt gives the block right behind a table no room above it, and hides it while it is empty
                block.setTopMargin(max(block.topMargin(), self._formats.unit))
            self.cursor.insertBlock(block, text)
        self.fresh = False
        current = self.cursor.currentList()
        if current is not None and made is None:  # a new block continues the list of the one before
            current.remove(self.cursor.block())
            self.cursor.setBlockFormat(block)

    def write(self, tokens: "Sequence[Token]") -> None:
        """Write one top-level block."""
        nesting = _Nesting()
        table: list[Token] = []
        for token in tokens:
            if table or token.type == "table_open":
                table.append(token)
                if token.type == "table_close":
                    self._write_table(table, nesting)
                    table = []
            else:
                self._write_token(token, nesting)
        if tokens[0].type in {"bullet_list_open", "ordered_list_open"} and not self.fresh:
            end = self.cursor.blockFormat()
            end.setBottomMargin(self._formats.unit)
            self.cursor.setBlockFormat(end)

    def _write_token(self, token: "Token", nesting: "_Nesting") -> None:
        match token.type:
            case "paragraph_open":
                self._begin_nested(self._formats.paragraph(tight=token.hidden), self._formats.text, nesting)
            case "heading_open":
                block, nesting.text = self._formats.heading(int(token.tag[1]))
                self._begin_nested(block, nesting.text, nesting)
            case "heading_close":
                nesting.text = None
            case "inline":
                self.write_inline(token.children or [], nesting.text or self._formats.text)
            case "hr":
                self._begin_item(nesting)
                self._begin_nested(self._formats.rule(), self._formats.text, nesting)
            case "fence" | "code_block":
                for line in token.content.removesuffix("\n").split("\n"):
                    self._begin_nested(self._formats.paragraph(tight=True), self._formats.code(), nesting)
                    self.cursor.insertText(breakable(line), self._formats.code())
            case "list_item_close" | "bullet_list_open" | "ordered_list_open":
                self._begin_item(nesting)
                nesting.follow(token)
            case _:
                nesting.follow(token)

    def _begin_item(self, nesting: "_Nesting") -> None:
        """An item that has no words of its own has its number all the same."""
        if nesting.item is not None:
            self._begin_nested(self._formats.paragraph(tight=True), self._formats.text, nesting)

    def _begin_nested(self, block: QTextBlockFormat, text: QTextCharFormat, nesting: "_Nesting") -> None:
        """Start a block in lists and quotes; the first of an item has its bullet or number."""
        item, nesting.item = nesting.item, None
        depth = len(nesting.lists)
        self._formats.nest(block, 0 if item is not None else depth, nesting.quote)
        if item is None:
            self.begin(block, text)
            return
        if item.num_items % _LARGEST_LIST == 0:
            item.made = None
        self.begin(block, text, item.made)
        if item.made is None:
            made = QTextListFormat()
            made.setIndent(depth)
            if item.token.type == "ordered_list_open":
                made.setStyle(QTextListFormat.Style.ListDecimal)
                made.setStart(int(item.token.attrGet("start") or 1) + item.num_items)
            else:
                made.setStyle(_BULLETS[min(depth, len(_BULLETS)) - 1])
            item.made = self.cursor.createList(made)
        item.num_items += 1

    def write_inline(self, tokens: "Sequence[Token]", base: QTextCharFormat) -> None:
        """Write running text. An image becomes a link to itself: nothing is loaded."""
        formats = [base]
        after_display = False
        self._run = []
        for token in tokens:
            current = formats[-1]
            if after_display and token.type not in _BREAKS:
                self._insert(_LINE_END, current)
            after_display = token.type == "math" and token.block
            kind = token.type.removesuffix("_open")
            if kind in {"em", "strong", "s"}:
                formats.append(self._formats.emphasis(current, kind))
            elif kind == "link":
                formats.append(self._formats.link(current, str(token.attrGet("href") or "")))
            elif token.type in {"em_close", "strong_close", "s_close", "link_close"}:
                formats.pop()
            else:
                self._write_inline(token, current)
        self._flush()

    def _insert(self, text: str, shape: QTextCharFormat) -> None:
        """Insert text together with what comes next in the same format: each insertion alone takes 20 µs."""
        if self._run and self._shape is not shape:
            self._flush()
        self._run.append(text)
        self._shape = shape

    def _flush(self) -> None:
        if self._run:
            self.cursor.insertText(breakable("".join(self._run)), self._shape)
            self._run = []

    def _write_inline(self, token: "Token", current: QTextCharFormat) -> None:
        match token.type:
            case "text" | "html_inline":
                for text, address in split_urls(token.content):
                    plain = not address or current.isAnchor()
                    self._insert(text, current if plain else self._formats.link(current, address))
            case "softbreak" | "hardbreak":
                self._insert(_LINE_END, current)
            case "code_inline":
                self._insert(token.content, self._formats.inline_code(current))
            case "math":
                self._write_formula(token, current)
            case "image":
                address = str(token.attrGet("src") or "")
                self._insert(f"🖼 {token.content or address}", self._formats.link(current, address))
            case _:
                self._insert(token.content, current)

    def _write_formula(self, token: "Token", current: QTextCharFormat) -> None:
        """The picture where it is drawn already; else the text, which is replaced when it is."""
        self.num_formulas += 1
        self._flush()
        image = self._formats.formula(token.content, display=token.block)
        if image is None:
            self.cursor.insertText(token.markup, self._formats.inline_code(current))
            return
        if self._objects is None:
            self._objects = FormulaObjects(self.cursor.document())
        shape = self._objects.format_of(image, token.markup, current)
        before = self.cursor.document().characterAt(self.cursor.position() - 1)
        if token.block and not self.cursor.atBlockStart() and before != _LINE_END:
            self.cursor.insertText(_LINE_END, current)
        self.cursor.insertText(OBJECT_LETTER, shape)

    def _write_table(self, tokens: "Sequence[Token]", nesting: "_Nesting") -> None:
        rows: list[list[Token]] = []
        for token in tokens:
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "inline":
                rows[-1].append(token)
        columns = max((len(row) for row in rows), default=0)
        if not columns:
            return
        self._begin_item(nesting)
        if self.fresh:
            self.cursor.setBlockFormat(self._formats.gap())
        table_format = self._formats.table(after_code=bool(self.cursor.blockFormat().property(CODE)))
        table_format.setLeftMargin(self._formats.inset(len(nesting.lists), nesting.quote))
        table_format.setColumnWidthConstraints([QTextLength(QTextLength.Type.VariableLength, 0)] * columns)
        table: QTextTable = self.cursor.insertTable(len(rows), columns, table_format)
        for r, row in enumerate(rows):
            for c, cell in enumerate(row):
                self.cursor = table.cellAt(r, c).firstCursorPosition()
                base = self._formats.text if r else self._formats.emphasis(self._formats.text, "strong")
                self.write_inline(cell.children or [], base)
        self.cursor = QTextCursor(table.document())
        self.cursor.movePosition(QTextCursor.MoveOperation.End)
        self.cursor.setBlockFormat(self._formats.gap())
        self.fresh = True


@dataclass
class _List:
    """A list being written; made with its first item."""

    token: "Token"
    made: QTextList | None = None
    num_items: int = 0


@dataclass
class _Nesting:
    """Where in lists and quotes the writer is; `item` is set until the item's first paragraph began."""

    lists: list[_List] = field(default_factory=list)
    item: _List | None = None
    quote: int = 0
    text: QTextCharFormat | None = None

    def follow(self, token: "Token") -> None:
        """Enter or leave what the token opens or closes."""
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                self.lists.append(_List(token))
            case "bullet_list_close" | "ordered_list_close":
                self.lists.pop()
            case "list_item_open":
                self.item = self.lists[-1]
            case "blockquote_open":
                self.quote += 1
            case "blockquote_close":
                self.quote -= 1
            case _:
                pass
