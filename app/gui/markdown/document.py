"""A text document that grows with streamed Markdown. Only the last top-level block is laid out again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextLength,
    QTextList,
    QTextListFormat,
    QTextTable,
)

from app.gui.markdown.formats import CELLS, CODE, INDENT_UNITS, TABLE, Formats
from app.gui.markdown.formula_object import OBJECT_LETTER, FormulaObjects
from app.gui.markdown.highlight import fresh_start, spans, warm_up_lexers
from app.gui.markdown.parse import (
    BOXES,
    Block,
    References,
    blocks,
    breakable,
    closing_fence,
    open_fence,
    parser,
    split_urls,
    table_source,
)

if TYPE_CHECKING:
    from markdown_it.token import Token

# Larger than any real paragraph, list or table. Measured: parsing this many opening brackets takes 3 s.
_LARGEST_BLOCK = 1 << 16
_PART = 1 << 15  # chunk size for a complete text, so that the limit above applies to single blocks only


@dataclass
class CodeRange:
    """A code block in the document: first and last text block, and the code that "copy" copies."""

    language: str
    code: str
    first: int
    last: int
    above: float = 0  # space above its frame that the previous block does not provide


@dataclass
class _OpenCode:
    """An unclosed fence. Everything before `lexed` (document position `position`) is final."""

    marker: str
    start: int
    range: CodeRange
    lexed: int
    position: int
    searched: int = 0  # no line before this offset closes the fence


class MarkdownDocument:
    """Renders Markdown into a QTextDocument, at once or as it streams."""

    def __init__(self, document: QTextDocument, formats: Formats, unwrapped: Collection[int] = frozenset()) -> None:
        """`unwrapped`: numbers of the code blocks whose lines do not wrap."""
        self._document = document
        self._unwrapped = unwrapped
        document.setUndoRedoEnabled(False)
        document.setIndentWidth(INDENT_UNITS * formats.unit)
        document.setDocumentMargin(0)
        self._formats = formats
        self.text = ""
        self.plain = False
        self.code: list[CodeRange] = []
        self._stable = 0  # offset in the text at which the last block starts
        self._references: References = {}  # link reference definitions before that offset
        self._after_return = False
        self._in_plain = False  # inside a block that is too large
        self._unsettled = 0  # length of the last block without the newest text
        self._mark = _Mark(0, True, QTextBlockFormat(), 0)
        self._open: _OpenCode | None = None
        self._writer = BlockWriter(QTextCursor(document), formats)

    @property
    def num_stable_code(self) -> int:
        """Number of code blocks whose position is final."""
        return self._mark.code_ranges

    @property
    def num_unsettled(self) -> int:
        """Number of characters that are laid out again with each append."""
        since = self._stable if self._open is None else self._open.start + self._open.lexed
        return len(self.text) - since

    @property
    def num_formulas(self) -> int:
        """Number of formulas in the text, rendered or not."""
        return self._writer.num_formulas

    def set_text(self, text: str) -> None:
        """Replace the whole text."""
        self._document.clear()
        self.plain = False
        self.text, self.code, self._stable, self._open = "", [], 0, None
        self._references, self._after_return, self._in_plain = {}, False, False
        self._writer = BlockWriter(QTextCursor(self._document), self._formats)
        self._mark = _Mark(0, True, QTextBlockFormat(), 0)
        for start in range(0, len(text), _PART):
            self.append(text[start : start + _PART])
        self._fit_top()

    def set_plain(self, text: str) -> None:
        """Replace the whole text by plain text."""
        self.set_text("")
        self.text, self.plain = text, True
        cursor = self._writer.cursor
        block = self._formats.paragraph(tight=True)
        block.setBottomMargin(0)
        self._writer.begin(block, self._formats.text)
        cursor.insertText(breakable(text), self._formats.text)

    def append(self, text: str) -> None:
        text = self._as_parsed(text)
        if not text:
            return
        self._unsettled = len(self.text) - self._stable
        self.text += text
        self._writer.cursor.beginEditBlock()
        try:
            if self._open is None or not self._grow_code():
                self._render_tail()
            self._fit_top()
        finally:
            self._writer.cursor.endEditBlock()

    def _as_parsed(self, text: str) -> str:
        """Normalize line endings as the parser does. The line feed after a carriage return may come later."""
        if self._after_return:
            text = text.removeprefix("\n")
        if text:
            self._after_return = text.endswith("\r")
        return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")

    def _fit_top(self) -> None:
        """Set the top margin.

        Qt ignores the first block's top margin, so a code header needs the frame's margin.
        """
        frame = self._document.rootFrame()
        margin = self._formats.code_top if self._document.firstBlock().blockFormat().property(CODE) else 0.0
        form = frame.frameFormat()
        if form.topMargin() != margin:
            form.setTopMargin(margin)
            frame.setFrameFormat(form)

    def _render_tail(self) -> None:
        tail = self.text[self._stable :]
        if self._in_plain or (self._unsettled > _LARGEST_BLOCK and open_fence(tail) is None):
            tail = self._write_plain(tail)
        if not tail:
            return
        references = dict(self._references)
        parsed = blocks(tail, references)
        self._rewind()
        if not parsed:
            return
        lines = tail.split("\n")
        keep = len(parsed) - 1
        if keep and lines[-1] and parsed[keep].line >= len(lines) - 2:
            # A line's type is known only at its end: it may still belong to the previous block, or turn the line
            # above into a table head.
            keep -= 1
        for block in parsed[:keep]:
            self._write(block)
        self._mark = self._current_mark()
        line = parsed[keep].line
        self._stable += sum(len(text) + 1 for text in lines[:line])
        for label, reference in references.items():
            if label not in self._references and reference["map"][1] <= line:
                self._references[label] = reference
        for block in parsed[keep:-1]:
            self._write(block)
        self._write_last(parsed[-1], alone=keep == len(parsed) - 1)

    def _write_plain(self, tail: str) -> str:
        """Append the rest of a block that is too large as plain text. Returns the text after the block."""
        if not self._in_plain:
            self._rewind()
            self._writer.begin(self._formats.paragraph(), self._formats.text)
        # The final line feed may be the first half of the block's end.
        end = tail.find("\n\n", 0 if self._in_plain else self._unsettled)
        text = tail[:end] if end >= 0 else tail.removesuffix("\n")
        self._writer.cursor.insertText(breakable(text.replace("\n", "\u2028")), self._formats.text)
        self._in_plain = end < 0
        self._mark = self._current_mark()
        self._stable += len(text)
        return tail[len(text) :] if end >= 0 else ""

    def _write(self, block: Block) -> None:
        token = block.tokens[0]
        if token.type in {"fence", "code_block"}:
            code = token.content.removesuffix("\n")
            language = token.info.split()[0] if token.info.split() else ""
            self._start_code(language)
            self._write_code(code)
            self.code[-1].code = code
            self.code[-1].last = self._document.blockCount() - 1
            self._close_code()
        else:
            self._writer.write(block.tokens)

    def _write_last(self, block: Block, *, alone: bool) -> None:
        tail = self.text[self._stable :]
        fence = open_fence(tail) if alone and block.tokens[0].type == "fence" else None
        self._write(block)
        if fence is not None and closing_fence(tail[fence[1] :], fence[0]) is None:
            last = self.code[-1]
            first_line = self._document.findBlockByNumber(last.first)
            self._open = _OpenCode(fence[0], self._stable + fence[1], last, 0, first_line.position())

    def _grow_code(self) -> bool:
        """Append to an open fence. Returns False if it was closed and the tail must be parsed."""
        state = self._open
        assert state is not None
        code = self.text[state.start :]
        if closing_fence(code, state.marker, state.searched) is not None:
            self._open = None
            return False
        state.searched = code.rfind("\n") + 1
        # Do not show a line that may become the closing fence until it turns out not to be.
        last_line = code[code.rfind("\n") + 1 :]
        if last_line.strip() and not last_line.strip(f" {state.marker[0]}"):
            return True
        if not last_line.strip():
            code = code.removesuffix(last_line)
        code = code.removesuffix("\n")
        since = fresh_start(code, state.lexed)
        cursor = self._writer.cursor
        if since > state.lexed:  # write the text that is now final once, then continue after it
            self._replace_code(state.position, code[state.lexed : since], first=state.lexed == 0)
            state.position = cursor.position()
            state.lexed = since
        self._replace_code(state.position, code[state.lexed :], first=state.lexed == 0)
        state.range.code = code
        state.range.last = self._document.blockCount() - 1
        self._close_code()
        return True

    def _replace_code(self, position: int, code: str, *, first: bool) -> None:
        cursor = self._writer.cursor
        cursor.setPosition(position)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        cursor.setBlockFormat(self._code_line(first=first, last=False))
        self._write_code(code)

    def _start_code(self, language: str) -> None:
        formats, before = self._formats, self._writer.cursor
        above = 0.0
        if before.blockFormat().property(CODE):
            above = formats.code_bottom
        elif self._writer.fresh and before.position():
            above = formats.unit  # after a table
        self.code.append(CodeRange(language, "", 0, 0, above))
        self._writer.begin(self._code_line(first=True, last=False), formats.code())
        self.code[-1].first = self.code[-1].last = self._document.blockCount() - 1

    def _code_line(self, *, first: bool, last: bool) -> QTextBlockFormat:
        """The block format of a line in the last code block."""
        code, wraps = self.code[-1], len(self.code) - 1 not in self._unwrapped
        return self._formats.code_line(code.language, code.above, first=first, last=last, wraps=wraps)

    def _write_code(self, code: str) -> None:
        inner = self._code_line(first=False, last=False)
        write_code(self._writer.cursor, code, self.code[-1].language, inner, self._formats)

    def _close_code(self) -> None:
        """Add the space below the last line of a code block."""
        cursor = self._writer.cursor
        is_first = cursor.blockNumber() == self.code[-1].first
        cursor.setBlockFormat(self._code_line(first=is_first, last=True))

    def _current_mark(self) -> "_Mark":
        cursor = self._writer.cursor
        return _Mark(cursor.position(), self._writer.fresh, cursor.blockFormat(), len(self.code))

    def _rewind(self) -> None:
        """Remove everything after the mark."""
        mark, cursor = self._mark, self._writer.cursor
        cursor.setPosition(mark.position)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        cursor.setBlockFormat(mark.block_format)
        self._writer.fresh = mark.fresh
        del self.code[mark.code_ranges :]


def write_code(
    cursor: QTextCursor, code: str, language: str, line_format: QTextBlockFormat, formats: Formats
) -> None:
    """Write code at the cursor, coloured. `line_format` is that of each line after the first."""
    syntax = formats.theme.tokens.syntax
    formats_by_colour: dict[str | None, QTextCharFormat] = {}
    for text, colour in spans(code, language):
        if colour not in formats_by_colour:
            formats_by_colour[colour] = formats.code(syntax[colour] if colour else None)
        head, *others = text.split("\n")
        cursor.insertText(breakable(head), formats_by_colour[colour])
        for line in others:
            cursor.insertBlock(line_format, formats_by_colour[colour])
            if line:
                cursor.insertText(breakable(line), formats_by_colour[colour])


@dataclass(frozen=True)
class _Mark:
    """The document's state before its last block."""

    position: int
    fresh: bool
    block_format: QTextBlockFormat
    code_ranges: int


def warm_up() -> None:
    """Load the parser and the lexers in advance, for the first response."""
    parser()
    warm_up_lexers()


_LINE_END = "\u2028"
# Qt scans the whole list for each new item. Measured: 4,000 items in one list took 2 s, 8,000 took 12 s.
_LARGEST_LIST = 100
_BREAKS = frozenset({"softbreak", "hardbreak"})
_BULLETS = (
    QTextListFormat.Style.ListDisc,
    QTextListFormat.Style.ListCircle,
    QTextListFormat.Style.ListSquare,
)


class BlockWriter:
    """Writes blocks at a cursor. `fresh`: the cursor's block is empty and can be used."""

    def __init__(self, cursor: QTextCursor, formats: Formats) -> None:
        self.cursor = cursor
        self.fresh = True
        self._formats = formats
        self._objects: FormulaObjects | None = None
        self.num_formulas = 0
        self._run: list[str] = []
        self._shape = formats.text

    def begin(self, block: QTextBlockFormat, text: QTextCharFormat, text_list: QTextList | None = None) -> None:
        """Start a text block, as an item of the list `text_list` if given."""
        if text_list is not None:
            block.setObjectIndex(text_list.objectIndex())
        if self.fresh and not self.cursor.position():
            self.cursor.setBlockFormat(block)
            self.cursor.setBlockCharFormat(text)
        else:
            if (
                self.fresh
            ):  # Qt ignores the top margin of the block after a table, and hides that block while it is empty
                block.setTopMargin(max(block.topMargin(), self._formats.unit))
            self.cursor.insertBlock(block, text)
        self.fresh = False
        current = self.cursor.currentList()
        if current is not None and text_list is None:  # a new block continues the list of the previous one
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
        """Write the number or bullet of an item without text."""
        if nesting.item is not None:
            self._begin_nested(self._formats.paragraph(tight=True), self._formats.text, nesting)

    def _begin_nested(self, block: QTextBlockFormat, text: QTextCharFormat, nesting: "_Nesting") -> None:
        """Start a block inside lists and quotes. The first block of an item gets its bullet or number."""
        item, nesting.item = nesting.item, None
        depth = len(nesting.lists)
        self._formats.nest(block, 0 if item is not None else depth, nesting.quote)
        if item is None:
            self.begin(block, text)
            return
        self._formats.hang(block, item.box)
        if item.num_items % _LARGEST_LIST == 0:
            item.made = None
        self.begin(block, text, item.made)
        if item.made is None:
            list_format = QTextListFormat()
            list_format.setIndent(depth)
            if item.token.type == "ordered_list_open":
                list_format.setStyle(QTextListFormat.Style.ListDecimal)
                list_format.setStart(int(item.token.attrGet("start") or 1) + item.num_items)
            else:
                bullet = _BULLETS[min(depth, len(_BULLETS)) - 1]
                list_format.setStyle(QTextListFormat.Style.ListStyleUndefined if item.box else bullet)
            item.made = self.cursor.createList(list_format)
        item.num_items += 1

    def write_inline(self, tokens: "Sequence[Token]", base: QTextCharFormat) -> None:
        """Write inline text. An image becomes a link to its address; nothing is loaded."""
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
        """Buffer text and insert it with adjacent text of the same format: each insertion takes 20 µs."""
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
        """Insert the formula's image if rendered, else its source text, which is replaced later."""
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
        """Write a table. A head without a word, which Markdown demands even of a plain grid, is not drawn."""
        rows: list[list[tuple[str, Token]]] = []
        alignment = ""
        for token in tokens:
            if token.type == "tr_open":
                rows.append([])
            elif token.type in {"th_open", "td_open"}:
                alignment = str(token.attrGet("style") or "").removeprefix("text-align:")
            elif token.type == "inline":
                rows[-1].append((alignment, token))
        columns = max((len(row) for row in rows), default=0)
        if not columns:
            return
        self._begin_item(nesting)
        if self.fresh:
            self.cursor.setBlockFormat(self._formats.gap())
        table_format = self._formats.table(after_code=bool(self.cursor.blockFormat().property(CODE)))
        table_format.setLeftMargin(self._formats.inset(len(nesting.lists), nesting.quote))
        table_format.setColumnWidthConstraints([QTextLength(QTextLength.Type.VariableLength, 0)] * columns)
        for kind, source in zip((TABLE, CELLS), table_source(rows), strict=True):
            table_format.setProperty(kind, source)
        has_head = len(rows) == 1 or any(cell.content.strip() for _, cell in rows[0])
        shown, head = rows if has_head else rows[1:], self._formats.emphasis(self._formats.text, "strong")
        table: QTextTable = self.cursor.insertTable(len(shown), columns, table_format)
        for r, row in enumerate(shown):
            for c, (alignment, cell) in enumerate(row):
                self.cursor = table.cellAt(r, c).firstCursorPosition()
                block = QTextBlockFormat()
                block.setAlignment(_ALIGNMENTS.get(alignment, Qt.AlignmentFlag.AlignLeft))
                self.cursor.mergeBlockFormat(block)
                base = self._formats.text if r or not has_head else head
                self.write_inline(cell.children or [], base)
        self.cursor = QTextCursor(table.document())
        self.cursor.movePosition(QTextCursor.MoveOperation.End)
        self.cursor.setBlockFormat(self._formats.gap())
        self.fresh = True


_ALIGNMENTS = {
    "right": Qt.AlignmentFlag.AlignRight,
    "center": Qt.AlignmentFlag.AlignHCenter,
}


@dataclass
class _List:
    """A list being written. It is created with its first item. `box` stands for the bullet of the current item."""

    token: "Token"
    made: QTextList | None = None
    num_items: int = 0
    box: str = ""

    def begin_item(self, box: str) -> None:
        """Go on to the next item. One with a box and one with a bullet are not in the same Qt list."""
        if bool(box) != bool(self.box):
            self.made = None
        self.box = box


@dataclass
class _Nesting:
    """The current nesting of lists and quotes. `item` is set until the item's first paragraph starts."""

    lists: list[_List] = field(default_factory=list)
    item: _List | None = None
    quote: int = 0
    text: QTextCharFormat | None = None

    def follow(self, token: "Token") -> None:
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                self.lists.append(_List(token))
            case "bullet_list_close" | "ordered_list_close":
                self.lists.pop()
            case "list_item_open":
                self.item = self.lists[-1]
                is_bullet = self.item.token.type == "bullet_list_open"
                self.item.begin_item(token.info if is_bullet and token.info in BOXES else "")
            case "blockquote_open":
                self.quote += 1
            case "blockquote_close":
                self.quote -= 1
            case _:
                pass
