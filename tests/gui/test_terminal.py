"""The terminal of the Code page: a command's output, with colours, limited, without other escape sequences."""

import pytest
from PySide6.QtWidgets import QApplication

from app.gui.code import terminal_panel
from app.gui.code.terminal_panel import AnsiParser, Style, TerminalPanel, plain

ESC = "\x1b"


def spans(*chunks):
    parser = AnsiParser()
    found = [span for chunk in chunks for span in parser.feed(chunk)]
    return [(span.text, span.style) for span in found]


@pytest.mark.parametrize(
    ("codes", "style"),
    [
        ("31", Style("bad")),
        ("1;32", Style("ok", bold=True)),
        ("93", Style("warn")),
        ("38;5;2", Style("ok")),
        ("38;5;200", Style()),
        ("38;2;255;0;0", Style()),
        ("38:5:1", Style("bad")),
        ("41;4", Style(underlined=True)),
        ("48;5;1;32", Style("ok")),
        ("31;0", Style()),
        ("", Style()),
        ("38;5", Style()),
        ("99999999999999999999", Style()),
    ],
)
def test_colours_bold_and_underlining_count(codes, style):
    assert spans(f"{ESC}[{codes}mx") == [("x", style)]


@pytest.mark.parametrize(
    "sequence",
    [
        f"{ESC}[2J", f"{ESC}[1;1H", f"{ESC}[?1049h", f"{ESC}[6n", f"{ESC}]0;title\x07", f"{ESC}(B", f"{ESC}c",
        f"{ESC}]8;;http://example.org{ESC}\\", f"{ESC}]52;c;c2VjcmV0\x07", f"{ESC}P+q544e{ESC}\\", f"{ESC}=",
        "\x07", "\0",
    ],
)  # fmt: skip
@pytest.mark.parametrize("cut", range(4))
def test_nothing_else_of_a_terminal_is_carried_out(sequence, cut):
    assert "".join(text for text, _ in spans("a" + sequence[:cut], sequence[cut:] + "b")) == "ab"


def test_what_cannot_be_seen_is_shown_as_a_sign():
    assert plain("a\u202eb\u200bc\td") == "a�b�c\td"
    assert plain(f"10 %\r20 %\r{ESC}[32m100 %{ESC}[0m\r\ndone\n") == "100 %\ndone\n"
    endless = f"{ESC}]" + "x" * 9000
    assert len("".join(text for text, _ in spans(endless, endless))) > 9000, "it is no escape sequence then"


@pytest.fixture
def panel(qtbot, theme):
    made = TerminalPanel(theme)
    qtbot.addWidget(made)
    made.resize(600, 400)
    made.show()
    return made


def test_a_command_is_followed_and_a_line_is_written_over(panel, qtbot):
    panel.begin("make all")
    assert panel.stop.isEnabled()
    for number in range(200):
        panel.append(f"\r{number} %")
    panel.append("\r\n")
    panel.append(f"{ESC}[31mred{ESC}[0m\n")
    assert panel.output.toPlainText() == "$ make all\n199 %\nred\n"
    red = panel.output.document().findBlockByNumber(2).begin().fragment()
    before = panel._theme.tokens.colour("bad")
    assert red.charFormat().foreground().color() == before
    panel._theme.set("dark", 100)
    red = panel.output.document().findBlockByNumber(2).begin().fragment()
    assert red.charFormat().foreground().color() == panel._theme.tokens.colour("bad") != before
    with qtbot.waitSignal(panel.stop_pressed):
        panel.stop.click()
    panel.end(None, 2.5)
    assert panel.state.text() == "stopped after 2.5 s"
    assert not panel.stop.isEnabled()
    panel.begin("true")
    panel.end(0, 0.1)
    assert panel.output.toPlainText().endswith("$ true\n\n[exit code 0 after 0.1 s]")
    panel.clear()
    assert panel.output.toPlainText() == ""


def test_long_output_is_cut_with_a_note(panel, monkeypatch):
    monkeypatch.setattr(terminal_panel, "MAX_CHARS", 20_000)
    monkeypatch.setattr(terminal_panel, "_MAX_LINE_CHARS", 500)
    panel.begin("yes")
    panel.append("x" * 5000 + "\n")
    assert not panel.cut.isVisible()
    assert len(panel.output.toPlainText()) < 600, "a line is cut too"
    for number in range(400):
        panel.append(f"line {number} of an output that does not end\n" * 3)
    QApplication.processEvents()
    assert panel.cut.isVisible()
    assert panel.output.document().characterCount() <= 20_000
    assert panel.output.toPlainText().splitlines()[-1].startswith("line 399")
    assert panel.output.toPlainText().startswith("line ")
