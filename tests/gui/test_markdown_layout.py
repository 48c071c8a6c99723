"""Blocks of an answer are below each other in any order: none overlap, none are lost."""

import itertools

import pytest
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QToolButton

from app.gui.latex_images import FormulaImage
from app.gui.markdown.view import MarkdownView

BLOCKS = {
    "paragraph": "Some text of a paragraph that is long enough to wrap at narrow widths.\n\n",
    "heading": "## A heading\n\n",
    "list": "- one\n- two\n\n",
    "numbers": "1. one\n2. two\n\n",
    "quote": "> quoted words\n\n",
    "table": "| a | b |\n|---|---|\n| 1 | 2 |\n\n",
    "code": "```python\nx = 1\ny = 2\n```\n\n",
    "indented code": "    a = 1\n\n",
    "rule": "***\n\n",
    "formula": "$$\\frac{a}{b}$$\n\n",
    "image": "![alt](http://x/y.png)\n\n",
    "code in a list": "- item\n\n  ```py\n  x = 1\n  ```\n\n",
    "table in a list": "- item\n\n  | a | b |\n  |---|---|\n  | 1 | 2 |\n\n",
    "table in a quote": "> | a |\n> |---|\n> | 1 |\n\n",
    "all in a list": "1. # h\n2. - x\n3.\n4. ***\n5. ```\n   x\n   ```\n\n",
}
GAP = 1.0  # minimum pixels between blocks
PADDING = 7  # of a cell, with its line


def placed(view):
    """What is painted, from the top: (kind, top, bottom); a code block includes its frame."""
    document, layout = view.document(), view.document().documentLayout()
    frames = {number: code for code in view.code for number in range(code.first, code.last + 1)}
    found, code = [], None
    part = document.rootFrame().begin()
    while not part.atEnd():
        if (table := part.currentFrame()) is not None:
            cells = [
                layout.blockBoundingRect(table.cellAt(r, c).firstCursorPosition().block())
                for r in range(table.rows())
                for c in range(table.columns())
            ]
            top, bottom = min(cell.top() for cell in cells), max(cell.bottom() for cell in cells)
            found.append(("table", top - PADDING, bottom + PADDING))
            code = None
        else:
            block = part.currentBlock()
            box = layout.blockBoundingRect(block)
            before, code = code, frames.get(block.blockNumber())
            if code is not None:
                if code is not before:
                    box = view._code_box(code)
                    found.append(("code", box.top(), box.bottom()))
            elif block.text() or block.textList():
                found.append(("text", box.top(), box.bottom()))
        part += 1
    return found


@pytest.fixture(params=["text", "pictures"])
def made(request, theme, monkeypatch):
    """A view; formulas are text that waits for its image, or are rendered already."""
    if request.param == "pictures":
        from PySide6.QtSvg import QSvgRenderer

        image = FormulaImage(QSvgRenderer(), 40.0, 55.0, 30.0)
        monkeypatch.setattr(theme.formulas, "get", lambda formula: image)
    view = MarkdownView(theme)
    yield view
    view.deleteLater()


@pytest.mark.parametrize(("width", "step"), [(280, 0), (700, 0), (280, 5)])
def test_no_block_is_painted_over_another(made, width, step):
    made.fit_width(width)
    wrong = []
    for first, second in [("", kind) for kind in BLOCKS] + list(itertools.product(BLOCKS, BLOCKS)):
        text = BLOCKS.get(first, "") + BLOCKS[second] + "end\n"
        if step:
            made.set_markdown("")
            for start in range(0, len(text), step):
                made.append_markdown(text[start : start + step])
        else:
            made.set_markdown(text)
        parts = placed(made)
        edges = [0.0, *itertools.chain.from_iterable(part[1:] for part in parts), made.height() + GAP]
        if any(below < above for above, below in itertools.pairwise(edges)):
            wrong.append((first, second, parts, made.height()))
        tops, bottoms = [part[1] for part in parts[1:]], [part[2] for part in parts]
        framed = [a[0] != "text" or b[0] != "text" for a, b in itertools.pairwise(parts)]
        if any(f and top - bottom < GAP for f, top, bottom in zip(framed, tops, bottoms, strict=False)):
            wrong.append((first, second, parts))
    assert wrong == []


@pytest.mark.parametrize("before", ["", BLOCKS["table"], BLOCKS["code"], BLOCKS["table in a list"]])
def test_the_frame_of_code_is_painted_whole_with_its_header_and_button(qtbot, theme, before):
    view = MarkdownView(theme)
    qtbot.addWidget(view)
    view.fit_width(400)
    view.append_markdown(before)
    for piece in ("``", "`\n", "x = 1\n", "``", "`\n"):
        view.append_markdown(piece)
    view.setStyleSheet("background: white;")
    view.show()
    shown = view.grab().toImage()
    box = view._code_box(view.code[-1])
    assert box.top() >= 0
    assert box.bottom() <= view.height()
    ground = theme.tokens.colour("code")
    for y in (box.top() + 3, box.top() + 16, box.bottom() - 3):
        assert QColor(shown.pixel(200, round(y))) == ground, y
    line = QColor(theme.tokens.colour("border"))
    assert QColor(shown.pixel(200, round(box.top() - 0.5))).lightness() <= line.lightness() + 8
    button = view.findChildren(QToolButton)[-1]
    assert box.contains(button.geometry().center())


def test_the_icons_of_code_follow_the_text_size(qtbot, theme):
    view = MarkdownView(theme)
    qtbot.addWidget(view)
    view.fit_width(400)
    view.set_markdown(BLOCKS["code"])
    view.show()

    def sides():
        return {b.iconSize().width() for pair in view._buttons for b in pair}

    assert sides() == {16}
    theme.set("light", 150)
    qtbot.waitUntil(lambda: sides() == {24})
    button = view._buttons[0][0]
    assert button.height() >= 24 + 8, "the header has room for the icon and the space around it"


def test_code_that_is_taken_back_at_the_start_leaves_no_room(theme):
    view = MarkdownView(theme)
    view.fit_width(400)
    view.set_markdown("words\n")
    plain = view.height()
    view.set_markdown("```\nx\n```\n")
    assert view.height() > 2 * plain
    view.set_markdown("words\n")
    assert view.height() == plain
    view.set_markdown("```\nx\n```\n")
    view.set_plain("words")
    assert view.height() <= plain


def test_items_without_words_of_their_own_keep_their_numbers_and_tables_their_cells(theme):
    view = MarkdownView(theme)
    view.set_markdown(BLOCKS["all in a list"])
    block, numbers = view.document().firstBlock(), []
    while block.isValid():
        if block.textList() is not None and block.textList().format().indent() == 1:
            numbers.append(block.textList().itemNumber(block) + 1)
        block = block.next()
    assert numbers == [1, 2, 3, 4, 5]
    view.set_markdown(BLOCKS["table in a list"] + BLOCKS["table in a quote"])
    assert len(view.document().rootFrame().childFrames()) == 2
    assert "ab" not in view.toPlainText()


def test_a_list_of_hundreds_of_items_keeps_its_numbers(theme):
    view = MarkdownView(theme)
    view.set_markdown("".join(f"{number}. item\n" for number in range(7, 357)))
    block, shown = view.document().firstBlock(), []
    while block.isValid():
        made = block.textList()
        shown.append(made.itemText(block))
        assert made.count() <= 100, "Qt looks at all of a list with each new item"
        block = block.next()
    assert shown == [f"{number}." for number in range(7, 357)]


def test_what_takes_long_to_lay_out_is_laid_out_less_often_and_shown_whole(qtbot, theme):
    view = MarkdownView(theme)
    qtbot.addWidget(view)
    view.fit_width(400)
    pieces = [f"- item {number}\n" for number in range(300)]
    laid_out = []
    append = view._content.append
    view._content.append = lambda text: (laid_out.append(text), append(text))
    for piece in pieces[:200]:
        view._took_s = 0.5  # as on a slow computer
        view.append_markdown(piece)
    assert len("".join(laid_out)) < 1200, "the rest waits"
    assert view.markdown == "".join(pieces[:200])
    qtbot.waitUntil(lambda: view.toPlainText().endswith("item 199"))
    for piece in pieces[200:]:
        view.append_markdown(piece)
    qtbot.waitUntil(lambda: view.toPlainText().endswith("item 299"))
    assert "".join(laid_out) == view.markdown == "".join(pieces)
    view._took_s = 0.5
    view.append_markdown("- and no more\n")
    view.set_markdown("other")
    qtbot.wait(20)
    assert view.toPlainText() == "other"


def test_a_block_of_no_answer_is_shown_as_written_and_what_follows_is_not(theme):
    view = MarkdownView(theme)
    view.fit_width(400)
    large = "[x](\n" * 60_000
    text = f"# head\n\n{large}\n- one\n- **two**\n"
    laid_out = []
    begin = view._content._rewind
    view._content._rewind = lambda: (laid_out.append(view._content.num_unsettled), begin())
    view.set_markdown(text)
    shown = view.toPlainText()
    assert shown.startswith("head\n[x](")
    assert shown.endswith("\none\ntwo")
    assert shown.count("[x](") == 60_000
    assert max(laid_out) < 140_000, "the block is not read again and again"


def test_a_long_word_has_places_to_break_and_is_copied_without_them(theme):
    view = MarkdownView(theme)
    view.fit_width(400)
    word = "a" * 20_000
    for text, copied in ((f"see {word} there", None), (f"```\n{word}\n```\n", word)):
        view.set_markdown(text)
        assert max(map(len, view.toPlainText().split("\u200b"))) <= 4200, "Qt takes the square of that"
        view.selectAll()
        assert view.createMimeDataFromSelection().text() == (copied or text)
        assert not view.code or view.code[0].code == word
    view.set_plain(word)
    view.selectAll()
    assert view.createMimeDataFromSelection().text() == word
