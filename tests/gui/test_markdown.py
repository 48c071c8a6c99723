"""The Markdown view: streamed and complete text look the same, and nothing in it is loaded or run."""

import contextlib
import html
import re
import socket
import sys
import threading

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, QStandardPaths, Qt, QUrl
from PySide6.QtGui import (
    QDesktopServices,
    QFont,
    QGuiApplication,
    QImage,
    QTextCursor,
    QTextDocument,
    QTextListFormat,
)
from PySide6.QtWidgets import QFileDialog, QMessageBox, QToolButton

from app.gui.markdown.code_actions import Picture, UnwrappedCode, ending, preview_page
from app.gui.markdown.document import MarkdownDocument
from app.gui.markdown.drawing_child import harmless
from app.gui.markdown.formats import Formats
from app.gui.markdown.highlight import fresh_start, spans
from app.gui.markdown.parse import split_urls
from app.gui.markdown.view import MarkdownView
from app.gui.theme import tokens
from tests.support.examples import examples

# The time to generate examples does not matter for the result.
CROWDED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
SAMPLE = """# Title
Some *text* with `code`, **bold** and a [link](https://example.org).

- one
- two
  1. nested
  2. list

> quoted
> text

```python
def f(x):
    return x + 1


def g():
    pass
```

| a | b |
|---|---|
| 1 | 2 |

Last paragraph.
"""


@pytest.fixture
def view(qtbot, theme):
    made = MarkdownView(theme)
    qtbot.addWidget(made)
    made.resize(600, 400)
    made.show()
    return made


def structure(document):
    """Text, formats and lists of a document, block by block."""
    rows = []
    block = document.firstBlock()
    while block.isValid():
        f = block.blockFormat()
        listed = block.textList()
        rows.append(
            (
                block.text(),
                f.headingLevel(),
                f.topMargin(),
                f.bottomMargin(),
                f.indent(),
                listed.format().style() if listed else None,
                listed.itemNumber(block) if listed else None,
            )
        )
        block = block.next()
    return rows


@pytest.mark.parametrize("step", [1, 2, 7, 50])
def test_streamed_text_ends_as_the_whole_text(qapp, theme, step):
    whole, streamed = QTextDocument(), QTextDocument()
    MarkdownDocument(whole, Formats(theme)).set_text(SAMPLE)
    growing = MarkdownDocument(streamed, Formats(theme))
    for start in range(0, len(SAMPLE), step):
        growing.append(SAMPLE[start : start + step])
    assert structure(streamed) == structure(whole)
    assert [(c.language, c.code, c.first, c.last) for c in growing.code] == [
        ("python", "def f(x):\n    return x + 1\n\n\ndef g():\n    pass", 7, 12)
    ]


_PARTS = "# h~|text |**b|** |~|~~|- item~|  - sub~|1. n~|> q~|```|```py~|x = 1~|`c`|[l](http://x)"
FRAGMENTS = st.sampled_from(
    [
        *_PARTS.replace("~", "\n").split("|"),
        "~~~\n",
        "| a | b |\n",
        "|---|---|\n",
        "| 1 | 2 |\n",
        "\\",
        "\t",
        "&amp;",
        "|",
        "---\n",
        "===\n",
        "    ",
        "$",
        "$$",
        "\\(",
        "\\)",
        "\r\n",
        "\r",
        "\0",
        "\u2028",
        "[r]",
    ]
)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=CROWDED)
@given(st.lists(FRAGMENTS, max_size=24))
@example(["```", "\\", "| a | b |\n", "|---|---|\n", "\n"])
@example(["> a | b\n", "|---|---|\n"])
@example(["- a | b\n", "|---|---|\n"])
@example(["x = 1\n", "|", "---\n", ":", "- ", "`"])
@example(["~~~\n", "\0"])
@example(["  ", "~~~\n", "    "])
@example(["```\r\n", "x\r\n", "```\r\n", "# h\r\n"])
@example(["a\r", "\n", "\r", "\n# b"])
@example(["a\x0cb\u2028c\x85d\x1ce\n", "\n", "# h\n", "text"])
@example(["[r]: http://x\n\n", "text\n\n", "see [r]"])
@example(["# h\n", "1.", "\n2. b\n", "   1. c\n"])
def test_any_split_of_any_markdown_ends_as_the_whole(theme, fragments):
    fragments = [*fragments, "\n"]  # half a closing fence is held back until its line ends
    text = "".join(fragments)
    whole, streamed = QTextDocument(), QTextDocument()
    MarkdownDocument(whole, Formats(theme)).set_text(text)
    growing = MarkdownDocument(streamed, Formats(theme))
    for fragment in fragments:
        growing.append(fragment)
    assert streamed.toPlainText() == whole.toPlainText()
    assert structure(streamed) == structure(whole)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=CROWDED)
@given(st.text(max_size=400))
def test_any_text_is_shown_without_an_error(theme, text):
    document = QTextDocument()
    MarkdownDocument(document, Formats(theme)).set_text(text)


def test_hostile_markdown_makes_no_connection_and_reads_no_file(qtbot, view, tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"\x89PNG")
    trap = socket.socket()
    trap.bind(("127.0.0.1", 0))
    trap.listen()
    trap.settimeout(0.3)
    hits = []

    def listen():
        with contextlib.suppress(TimeoutError):
            hits.append(trap.accept())

    listener = threading.Thread(target=listen)
    listener.start()
    base = f"http://127.0.0.1:{trap.getsockname()[1]}"
    view.set_markdown(
        f"![a]({base}/a.png) <img src='{base}/b.png'> <link rel=stylesheet href='{base}/c.css'>\n\n"
        f"<style>@import url({base}/d.css)</style> ![f](file://{secret}) [x]({base}/e)\n\n"
        f"<script>fetch('{base}')</script> <iframe src='{base}'></iframe>\n\n"
        f"![d](data:image/svg+xml;base64,AAAA) ![r][ref]\n\n[ref]: {base}/g.png\n"
    )
    view.grab()
    qtbot.wait(50)
    listener.join()
    trap.close()
    assert hits == []
    assert view.loadResource(2, QUrl(f"file://{secret}")) == b""
    assert view.document().toHtml().count("<img") == 0
    assert "<script>" in view.toPlainText(), "raw HTML is shown as text"


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "file:///etc/passwd", "tessera:x", "smb://host/x", "#top"]
)
def test_only_web_and_mail_links_can_open(view, address, monkeypatch):
    opened = []
    monkeypatch.setattr("PySide6.QtGui.QDesktopServices.openUrl", opened.append)
    view._on_anchor_clicked(QUrl(address))
    assert opened == []
    assert view.findChildren(QMessageBox) == []


def test_a_link_is_shown_before_it_opens(qtbot, view):
    view._on_anchor_clicked(QUrl("https://example.org/path?secret=1"))
    box = view.findChild(QMessageBox)
    assert box.informativeText() == "https://example.org/path?secret=1"
    box.button(QMessageBox.StandardButton.Cancel).click()
    qtbot.waitUntil(lambda: not box.isVisible())


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://\u0430\u0440\u0440\u04cf\u0435.com/", "https://xn--80ak6aa92e.com/"),  # Cyrillic letters
        ("https://bank.example@evil.example/", "https://bank.example@evil.example/"),
        ("https://e.example/%E2%80%AEmoc.knab", "https://e.example/%E2%80%AEmoc.knab"),
    ],
)
def test_no_letters_disguise_the_address_of_a_link(view, address, shown):
    view._on_anchor_clicked(QUrl(address))
    box = view.findChild(QMessageBox)
    assert box.informativeText() == shown
    box.button(QMessageBox.StandardButton.Cancel).click()


def test_code_has_a_copy_button_that_copies_exactly_the_code(qtbot, view, monkeypatch):
    monkeypatch.setattr("app.gui.markdown.view._COPIED_MS", 100)
    view.set_markdown("```python\nx = 1\n\n  y = 2\n```\n")
    (button,) = [made for made in view.findChildren(QToolButton) if made.accessibleName() == "Copy code"]
    before = button.icon().cacheKey()
    button.click()
    assert QGuiApplication.clipboard().text() == "x = 1\n\n  y = 2"
    copied = button.icon().cacheKey()
    assert copied != before
    qtbot.waitUntil(lambda: button.icon().cacheKey() != copied)


def test_a_diagram_is_left_as_text_with_a_note(view):
    view.set_markdown("```mermaid\ngraph TD; A-->B\n```\n\n```python\nx = 1\n```\n\n    plain\n")
    assert [view.code_title(code) for code in view.code] == [
        "mermaid · a diagram, shown as its text",
        "python",
        "text",
    ]
    assert "graph TD; A-->B" in view.toPlainText()


def test_task_lists_have_boxes_and_columns_their_alignment(view):
    view.set_markdown("- [ ] open\n- [x] done\n- [y] neither\n\n| a | b |\n|:-:|--:|\n| 1 | 22 |\n")
    lines = view.toPlainText().split("\n")
    assert lines[:3] == ["□ open", "✓ done", "[y] neither"]
    blocks = [view.document().findBlockByNumber(n) for n in range(view.document().blockCount())]
    styles = {block.text(): block.textList().format().style() for block in blocks if block.textList()}
    assert styles["□ open"] == styles["✓ done"] == QTextListFormat.Style.ListStyleUndefined, "the box is the bullet"
    assert styles["[y] neither"] == QTextListFormat.Style.ListDisc
    found = {block.text(): block.blockFormat().alignment() for block in blocks}
    assert found["1"] == found["a"] == Qt.AlignmentFlag.AlignHCenter
    assert found["22"] == found["b"] == Qt.AlignmentFlag.AlignRight


def test_a_table_whose_head_says_nothing_has_no_empty_first_row(view):
    view.set_markdown("| | |\n|-|-|\n| name | Skerry |\n| keeper | Berta |\n\n| a | b |\n|-|-|\n\n||\n|-|\n")
    tables = [made for made in view.document().rootFrame().childFrames() if hasattr(made, "rows")]
    cells = [
        [made.cellAt(r, 0).firstCursorPosition().block().text() for r in range(made.rows())] for made in tables
    ]
    assert cells == [["name", "keeper"], ["a"], [""]]
    bold = tables[0].cellAt(0, 0).firstCursorPosition().charFormat().fontWeight()
    assert bold < QFont.Weight.DemiBold, "no row has become the head"


def entries(menu):
    """The entries of a code block's menu, by their texts."""
    return {action.text(): action for action in menu.actions()}


def test_lines_of_code_wrap_or_scroll_sideways(view):
    long = "x = " + " + ".join(["1"] * 200)
    view.set_markdown(f"```python\n{long}\n```\n\nwords\n\n```python\ny = 2\n```\n")
    wrapped = view.height()
    entries(view.code_menu(0))["Do not wrap lines"].trigger()
    assert view.height() < wrapped
    assert view.horizontalScrollBar().maximum() == 0
    (lines,) = view.findChildren(UnwrappedCode)
    assert lines.toPlainText() == long
    assert lines.horizontalScrollBar().maximum() > lines.width()
    assert lines.verticalScrollBar().maximum() == 0
    assert lines.geometry().right() >= view.viewport().width() - 3, "what is behind it does not look out"
    block = view.document().findBlockByNumber(view.code[0].first)
    assert lines.y() == round(view.document().documentLayout().blockBoundingRect(block).top())
    view.append_markdown("\nmore")
    assert view.findChildren(UnwrappedCode) == [lines]
    entries(view.code_menu(0))["Wrap long lines"].trigger()
    view.set_markdown(f"```python\n{long}\n```\n\nwords\n\n```python\ny = 2\n```\n")
    assert view.height() == wrapped


def test_code_is_saved_with_the_ending_of_its_language(qtbot, view, tmp_path):
    view.set_markdown("```python\nx = 1\n```\n")
    entries(view.code_menu(0))["Save as a file…"].trigger()
    dialog = view.window().findChild(QFileDialog)
    assert dialog.selectedFiles()[0].endswith("code.py")
    dialog.fileSelected.emit(str(tmp_path / "made.py"))
    assert (tmp_path / "made.py").read_text() == "x = 1\n"
    dialog.fileSelected.emit(str(tmp_path / "missing" / "made.py"))
    (box,) = view.window().findChildren(QMessageBox)
    assert "No such file" in box.text()
    box.close()
    dialog.close()


@pytest.mark.parametrize(
    ("language", "wanted"),
    [("rust", ".rs"), ("", ".txt"), ("no such", ".txt"), ("../../x", ".txt"), ("make", ".mak")],
)
def test_the_ending_of_a_file_is_never_the_models_own(language, wanted):
    assert ending(language) == wanted


HOSTILE_SVG = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:x="http://www.w3.org/1999/xlink"
 width="40" height="20" onload="alert(1)"><style>rect {{ fill: url({base}/css) }}</style>
<style>@import "{base}/i";</style>
<script>fetch("{base}")</script><a x:href="{base}/a"><rect width="1" height="1"/></a>
<image x:href="{secret}" width="40" height="20"/><image href="data:image/svg+xml;base64,AAAA"/>
<use href="{base}/u#x"/><foreignObject><iframe src="{base}"/></foreignObject>
<rect fill="url({base}/f)" width="9" height="9"/><rect fill="url( '{base}/g' )" style="fill:u\\72l({base})"/>
<defs><rect id="kept" width="40" height="20" fill="#00ff00"/></defs><use x:href="#kept"/></svg>"""


def test_a_picture_is_drawn_without_what_it_leads_to(qtbot, view, tmp_path):
    secret = tmp_path / "secret.png"
    red = QImage(40, 20, QImage.Format.Format_RGB32)
    red.fill(Qt.GlobalColor.red)
    red.save(str(secret))
    drawing = HOSTILE_SVG.format(base="http://127.0.0.1:1", secret=secret)
    kept = harmless(drawing).decode()
    assert "kept" in kept
    for trace in ("127.0.0.1", "secret", "data:", "script", "foreignObject", "onload"):
        assert trace not in kept
    view.set_markdown(f"```svg\n{drawing}\n```\n\n```svg\n<svg><rect\n```\n")
    for number, words in ((0, "Drawn without"), (1, "This is not an SVG image")):
        entries(view.code_menu(number))["Show the picture"].trigger()
        dialog = view.window().findChild(Picture)
        qtbot.waitUntil(lambda dialog=dialog, words=words: words in dialog.words.text())
        if not number:
            shown = dialog.picture.pixmap().toImage()
            assert shown.pixelColor(shown.rect().center()).name() == "#00ff00"
        dialog.close()
        qtbot.waitUntil(lambda: view.window().findChild(Picture) is None)


@pytest.mark.parametrize("bad", ['<!DOCTYPE svg [<!ENTITY a "b">]><svg>&a;</svg>', "<html/>", "<svg", ""])
def test_what_is_no_picture_is_refused(bad):
    with pytest.raises(ValueError, match=r"."):
        harmless(bad)


def test_scripts_without_an_end_are_left_out_in_linear_time():
    inner = html.unescape(preview_page("<p>a</p>" + "<script >" * 40_000).split('srcdoc="')[1].split('"')[0])
    assert inner == "<p>a</p>"
    assert "<p>b</p>" in html.unescape(preview_page("<SCRIPT>x</SCRIPT foo><p>b</p><script>"))


def test_a_page_opens_without_scripts_and_without_network(view, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url) or True)
    monkeypatch.setattr(QStandardPaths, "writableLocation", lambda _: str(tmp_path))
    page = (
        "<!DOCTYPE html><html><head><meta http-equiv='refresh' content='0;url=http://a.b'><base href='http://a.b'>"
        "<LINK rel=preconnect href='http://a.b'><script src='http://a.b'>alert('&quot;')</script ></head>"
        "<body><h1>Title</h1><iframe srcdoc='x'></iframe><form action='http://a.b'><scr<script>x</script>ipt>"
        "</body></html>"
    )
    view.set_markdown(f"```html\n{page}\n```\n")
    entries(view.code_menu(0))["Open in the browser, without scripts"].trigger()
    (url,) = opened
    assert url.isLocalFile()
    assert sys.platform == "win32" or (tmp_path / "tessera-preview.html").stat().st_mode & 0o077 == 0
    text = (tmp_path / "tessera-preview.html").read_text("utf-8")
    shell, frame = text.split('srcdoc="')
    assert "default-src 'none'" in shell
    assert "<iframe sandbox title=" in shell, "sandboxed without a permission"
    inner = html.unescape(frame.split('"')[0])
    assert "<h1>Title</h1>" in inner
    assert re.search(r"<\s*/?(script|meta|link|base|iframe|form|object|embed)", inner, re.IGNORECASE) is None


TABLE = "| name | n |\n| :-- | --: |\n| **a** \\| b | `=SUM(1)` |\n| [l](http://x) | -5 |\n| =1+1 | +x |\n"


def test_a_table_is_copied_as_markdown_and_for_a_spreadsheet(qtbot, view):
    view.set_markdown(f"words\n\n{TABLE}")
    view.fit_width(500)
    (table,) = view.document().rootFrame().childFrames()
    middle = view._table_rect(table).center()
    qtbot.mouseMove(view.viewport(), middle)
    button = view._table_button
    qtbot.waitUntil(button.isVisible)
    assert button.x() >= view._table_rect(table).right(), "it covers no cell"
    view._offer_table(button.geometry().center())
    assert button.isVisible(), "the pointer has reached it"
    assert view._table_at(view._pointed) is not None, "what its click looks for"
    menu = view.table_menu(table)
    found = entries(menu)
    found["Copy table as Markdown"].trigger()
    assert QGuiApplication.clipboard().text() == TABLE
    found["Copy table for a spreadsheet"].trigger()
    assert QGuiApplication.clipboard().text() == "name\tn\na | b\t'=SUM(1)\nl\t-5\n'=1+1\t'+x\n"
    menu.deleteLater()
    qtbot.mouseMove(view.viewport(), QPoint(5, 5))
    qtbot.waitUntil(button.isHidden)


def test_code_has_no_ligatures(view):
    view.set_markdown("```c\na->b == c\n```")
    (code,) = view.code
    shape = QTextCursor(view.document().findBlockByNumber(code.first)).charFormat()
    for feature in ("liga", "calt"):
        assert shape.font().featureValue(QFont.Tag(feature)) == 0


def test_the_view_is_as_high_as_its_text(view):
    view.set_markdown("one line")
    small = view.fit_width(600)
    view.set_markdown("line\n\n" * 30)
    assert view.fit_width(600) > 20 * small
    assert view.fit_width(300) >= view.fit_width(600)


def test_the_theme_changes_live(qapp, view, theme):
    view.set_markdown(SAMPLE)
    before = view.toPlainText()
    theme.set("dark", 150)
    assert view.toPlainText() == before
    assert len(view.code) == 1


@given(st.text(alphabet="ab\n ()'\"#=:", max_size=300))
@settings(max_examples=examples(100), deadline=None, suppress_health_check=CROWDED)
def test_highlighting_loses_no_character(code):
    for language in ("python", "diff", "console"):
        assert "".join(text for text, _ in spans(code, language)) == code


def test_the_last_line_of_a_diff_is_coloured_without_a_line_feed():
    assert [colour for _, colour in spans("-old\n+new", "diff")] == ["keyword", "string"]


def test_lexing_a_growing_block_starts_at_most_4_kib_back():
    code = "x = 1\n" * 5000
    assert len(code) - fresh_start(code, 0) <= 4096
    assert fresh_start("a\n\ndef f():\n    pass", 0) == 3


def test_addresses_in_text():
    assert list(split_urls("see https://a.b/c(d). Then (http://x.y)!")) == [
        ("see ", ""),
        ("https://a.b/c(d)", "https://a.b/c(d)"),
        (". Then (", ""),
        ("http://x.y", "http://x.y"),
        (")!", ""),
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_on_every_ground(dark):
    """WCAG contrast of at least 4.5 for text, 3 for muted tiles."""
    t = tokens(dark=dark)

    def luminance(name):
        c = t.colour(name)
        parts = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in c.getRgbF()[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    def contrast(a, b):
        first, second = sorted((luminance(a), luminance(b)), reverse=True)
        return (first + 0.05) / (second + 0.05)

    pairs = [(text, ground) for text in ("text", "muted") for ground in ("background", "surface", "raised")]
    pairs += [("text", "hover"), ("text", "accent_soft"), ("on_accent", "accent"), ("link", "background")]
    pairs += [("ok", "ok_soft"), ("warn", "warn_soft"), ("bad", "bad_soft"), ("text", "bad_soft"), ("text", "code")]
    weak = {pair: round(contrast(*pair), 2) for pair in pairs if contrast(*pair) < 4.5}
    assert weak == {}
