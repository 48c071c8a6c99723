"""Output of running commands: shows colours, handles carriage returns, and notes where the output was cut."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QHideEvent, QShowEvent, QTextCharFormat, QTextCursor, QTextFormat
from PySide6.QtWidgets import QPlainTextEdit, QWidget

from app.gui import formatted
from app.gui.theme import Theme
from app.gui.widgets.basics import button, label, row, stack
from app.gui.widgets.elided import ElidedLabel
from app.gui.widgets.flow import Flow

MAX_CHARS = 400_000
_MAX_LINE_CHARS = 20_000
_MAX_SEQUENCE_CHARS = 4096  # anything longer is not an escape sequence
_TICK_MS = 500
_COLOUR = QTextFormat.Property.UserProperty + 1  # the name of the text's colour
# Colours of the terminal as names of the theme's colours; black and white are the text's own.
_COLOURS = ("text", "bad", "ok", "warn", "link", "accent", "link", "text")
_BRIGHT = ("muted", *_COLOURS[1:])
_PALETTE = (*_COLOURS, *_BRIGHT)
# Parameters of SGR sequences. Source: ECMA-48, 8.3.117, and aixterm's bright colours.
_SGR: dict[int, dict[str, Any]] = {
    1: {"bold": True},
    22: {"bold": False},
    4: {"underlined": True},
    24: {"underlined": False},
    39: {"colour": ""},
    **{30 + place: {"colour": name} for place, name in enumerate(_COLOURS)},
    **{90 + place: {"colour": name} for place, name in enumerate(_BRIGHT)},
}
_EXTENDED = frozenset({38, 48, 58})  # colours of the text, the background and the underline
_NUMBERS = {5: 1, 2: 3}
_ESCAPE = re.compile(
    r"\x1b(?:\[(?P<parameters>[0-9;:<=>?]*)[ -/]*(?P<final>[@-~])"  # CSI
    r"|[\]PX^_].{0,4000}?(?:\x07|\x1b\\)"  # OSC, DCS and others: titles, links, images
    r"|[ -/]*[0-OQ-WYZ\\`-~])",
    re.DOTALL,
)
_CONTROLS = re.compile(r"\x1b|[\r\n\b]|[^\r\n\b\x1b]+")


@dataclass(frozen=True)
class Style:
    """Format of the terminal's text; `colour` is a name of the theme, empty for the usual one."""

    colour: str = ""
    bold: bool = False
    underlined: bool = False


@dataclass(frozen=True)
class Span:
    """Text in one style, or a control: a newline, a carriage return or a backspace."""

    text: str
    style: Style


class AnsiParser:
    """Splits output into spans. Of the escape sequences only colours, bold and underlining count."""

    def __init__(self) -> None:
        self._style = Style()
        self._rest = ""

    def feed(self, text: str) -> Iterator[Span]:
        """The spans of the next output. An incomplete escape sequence waits for its end."""
        text, self._rest = self._rest + text, ""
        place = 0
        while place < len(text):
            match = _CONTROLS.match(text, place)
            assert match is not None
            if match[0] != "\x1b":
                place = match.end()
                yield Span(match[0] if match[0] in "\r\n\b" else _visible(match[0]), self._style)
                continue
            sequence = _ESCAPE.match(text, place)
            if sequence is not None:
                if sequence["final"] == "m":
                    self._style = _styled(self._style, sequence["parameters"])
                place = sequence.end()
            elif len(text) - place < _MAX_SEQUENCE_CHARS:
                self._rest = text[place:]
                return
            else:
                place += 1


def _visible(text: str) -> str:
    """Show control characters and invisible ones as a symbol; keep tabs."""
    return "".join(char if char.isprintable() or char == "\t" else "" if char < " " else "�" for char in text)


def _styled(style: Style, parameters: str) -> Style:
    """The style after the parameters of an SGR sequence."""
    codes = [int(code) if code.isdigit() else 0 for code in re.split("[;:]", parameters)]
    while codes:
        code = codes.pop(0)
        if code == 0:
            style = Style()
        elif code in _EXTENDED:  # a colour of a palette (one number) or of three
            kind = codes.pop(0) if codes else 0
            values = [codes.pop(0) for _ in range(min(_NUMBERS.get(kind, 0), len(codes)))]
            colour = _PALETTE[values[0]] if len(values) == 1 and values[0] < len(_PALETTE) else ""
            style = replace(style, colour=colour) if code == min(_EXTENDED) else style
        else:
            style = replace(style, **_SGR.get(code, {}))
    return style


def plain(text: str) -> str:
    """Output without escape sequences; of an overwritten line, only the last text."""
    lines = [""]
    for span in AnsiParser().feed(text.replace("\r\n", "\n")):
        if span.text == "\n":
            lines.append("")
        elif span.text == "\r":
            lines[-1] = ""
        elif span.text != "\b":
            lines[-1] += span.text
    return "\n".join(lines)


class TerminalPanel(QWidget):
    """The commands of the agent, one below the other, with a button that ends the running one."""

    stop_pressed = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._parser = AnsiParser()
        self._started_at: float | None = None
        self._returned = False  # the next text writes over the line
        self.command = ElidedLabel(self.tr("No command has run yet"), "strong")
        self.state = label("", "small", wrap=True)
        self.stop = button(self.tr("Stop the command"), self.stop_pressed.emit)
        self.stop.setEnabled(False)
        self.cut = label(
            self.tr("Earlier output was removed here. The model gets the beginning and the end of an output."),
            "chip-warn",
            wrap=True,
        )
        self.cut.hide()
        self.output = QPlainTextEdit(readOnly=True, undoRedoEnabled=False)
        self.output.setAccessibleName(self.tr("Output"))
        self.output.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        theme.dress(self.output, "mono")
        theme.changed.connect(self._repaint)
        self._timer = QTimer(self, interval=_TICK_MS)
        self._timer.timeout.connect(self._show_time)
        facts = Flow()
        for widget in (self.state, self.stop):
            facts.add(widget)
        head = row(self.command, facts, grow=0)
        column = stack(head, self.cut, margins=(8, 8, 8, 8))
        column.addWidget(self.output, 1)
        self.setLayout(column)

    def begin(self, command: str) -> None:
        self._parser = AnsiParser()
        self._returned = False
        self._started_at = time.monotonic()
        self.command.setText(command)
        self.stop.setEnabled(True)
        if not self.output.document().isEmpty():
            self._write("\n\n", Style())
        self._write(f"$ {command}\n", Style(colour="muted", bold=True))
        self._show_time()
        if self.isVisible():
            self._timer.start()

    def append(self, text: str) -> None:
        """Append output of the command."""
        bar = self.output.verticalScrollBar()
        follows = bar.value() >= bar.maximum() - 1
        for span in self._parser.feed(text.replace("\r\n", "\n")):
            self._add(span)
        self._shorten()
        if follows:
            bar.setValue(bar.maximum())

    def end(self, exit_code: int | None, elapsed_s: float) -> None:
        """Show that the command ended; None: it was stopped."""
        self._started_at = None
        self._timer.stop()
        self.stop.setEnabled(False)
        took = formatted.decimal(elapsed_s)
        words = (
            self.tr("stopped after {seconds} s").format(seconds=took)
            if exit_code is None
            else self.tr("exit code {code} after {seconds} s").format(code=exit_code, seconds=took)
        )
        self.state.setText(words)
        self._write(f"\n[{words}]", Style(colour="ok" if exit_code == 0 else "bad"))
        self.output.verticalScrollBar().setValue(self.output.verticalScrollBar().maximum())

    def clear(self) -> None:
        self._started_at = None
        self._timer.stop()
        self.stop.setEnabled(False)
        self.output.clear()
        self.cut.hide()
        self.command.setText(self.tr("No command has run yet"))
        self.state.setText("")

    def _add(self, span: Span) -> None:
        if span.text == "\r":
            self._returned = True
            return
        cursor = self._end()
        if span.text == "\b":
            if not cursor.atBlockStart():
                cursor.deletePreviousChar()
            return
        if self._returned and span.text != "\n":
            cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock, QTextCursor.MoveMode.KeepAnchor)
            cursor.removeSelectedText()
        self._returned = False
        room = _MAX_LINE_CHARS - cursor.positionInBlock()
        if span.text == "\n":
            self._write("\n", Style())
        elif room > 0:
            text = span.text if len(span.text) <= room else f"{span.text[:room]} …"
            self._write(text, span.style)

    def _write(self, text: str, style: Style) -> None:
        shape = QTextCharFormat()
        shape.setForeground(self._theme.tokens.colour(style.colour or "text"))
        shape.setProperty(_COLOUR, style.colour or "text")
        if style.bold:
            shape.setFontWeight(700)
        shape.setFontUnderline(style.underlined)
        self._end().insertText(text, shape)

    def _repaint(self) -> None:
        """Show the output in the colours of another theme."""
        document = self.output.document()
        parts = []
        block = document.begin()
        while block.isValid():
            at = block.begin()
            while not at.atEnd():
                fragment = at.fragment()
                name = fragment.charFormat().property(_COLOUR)
                parts.append((fragment.position(), fragment.length(), str(name or "text")))
                at += 1
            block = block.next()
        cursor = QTextCursor(document)
        for first, length, name in parts:
            cursor.setPosition(first)
            cursor.setPosition(first + length, QTextCursor.MoveMode.KeepAnchor)
            shape = QTextCharFormat()
            shape.setForeground(self._theme.tokens.colour(name))
            cursor.mergeCharFormat(shape)

    def _end(self) -> QTextCursor:
        cursor = QTextCursor(self.output.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        return cursor

    def _shorten(self) -> None:
        """Remove the oldest half of the output beyond the bound."""
        document = self.output.document()
        if document.characterCount() <= MAX_CHARS:
            return
        cursor = QTextCursor(document)
        cursor.setPosition(document.characterCount() - MAX_CHARS // 2, QTextCursor.MoveMode.KeepAnchor)
        cursor.movePosition(QTextCursor.MoveOperation.NextBlock, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        self.cut.show()

    def _show_time(self) -> None:
        if self._started_at is not None:
            seconds = formatted.whole(time.monotonic() - self._started_at)
            self.state.setText(self.tr("running for {seconds} s").format(seconds=seconds))

    def showEvent(self, event: QShowEvent) -> None:
        """Count the seconds while they are visible."""
        super().showEvent(event)
        if self._started_at is not None:
            self._show_time()
            self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()
