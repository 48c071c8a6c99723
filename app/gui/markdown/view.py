"""Shows a message's text at full height. Code blocks have a frame, a language label and a copy button."""

import math
import time
from bisect import bisect_left

from PySide6.QtCore import QCoreApplication, QEvent, QMimeData, QPointF, QRectF, QSize, Qt, QTimer, QUrl, Signal
from PySide6.QtGui import (
    QDesktopServices,
    QGuiApplication,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QTextCursor,
    QTextDocument,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QMessageBox, QSizePolicy, QTextBrowser, QToolButton, QWidget

from app.gui.markdown.document import CodeRange, MarkdownDocument
from app.gui.markdown.formats import CODE_HEADER_UNITS, CODE_PADDING_UNITS, QUOTE, Formats
from app.gui.markdown.formula_object import OBJECT_LETTER, SOURCE
from app.gui.markdown.parse import BREAK
from app.gui.theme import Theme

_OPENABLE = frozenset({"http", "https", "mailto"})
_DIAGRAMS = frozenset({"mermaid", "plantuml", "graphviz", "dot"})  # languages rendered as diagrams elsewhere
_COPIED_MS = 1500
_FORMULAS_MS = 100  # formulas that arrive within this time are shown together
# A text that is larger than this, and slower to lay out than one frame, is laid out less often than text arrives.
# Otherwise a list of thousands of items would block the window.
_LARGE = 1024  # characters
_LONG_S = 0.016
_SHARE = 4  # wait this many times the last layout time, to leave time for other events
_LONGEST_WAIT_MS = 3000


class MarkdownView(QTextBrowser):
    """Shows Markdown that can be appended to. Never loads anything; asks before opening links."""

    height_changed = Signal()

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._buttons: list[QToolButton] = []
        self.setProperty("kind", "message")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setOpenLinks(False)
        self.setOpenExternalLinks(False)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse
            | Qt.TextInteractionFlag.TextSelectableByKeyboard
            | Qt.TextInteractionFlag.LinksAccessibleByMouse
            | Qt.TextInteractionFlag.LinksAccessibleByKeyboard
        )
        self.viewport().setAutoFillBackground(False)
        self.anchorClicked.connect(self._on_anchor_clicked)
        self.highlighted.connect(lambda url: self.setToolTip(url.toString()))
        # Use a separate document: the wrapper of the built-in one becomes invalid when one of its lists is deleted.
        self._document = QTextDocument(self)
        self.setDocument(self._document)
        self.setCursorWidth(0)
        self._content = MarkdownDocument(self._document, Formats(theme))
        self._document.documentLayout().documentSizeChanged.connect(self._on_size_changed)
        theme.changed.connect(self._on_theme_changed)
        self._redraw = QTimer(self)
        self._redraw.setSingleShot(True)
        self._redraw.setInterval(_FORMULAS_MS)
        self._redraw.timeout.connect(self._show_formulas)
        theme.formulas.ready.connect(self._on_formulas)
        self._pending = ""
        self._took_s = 0.0
        self._later = QTimer(self)
        self._later.setSingleShot(True)
        self._later.timeout.connect(self._show_pending)

    @property
    def markdown(self) -> str:
        """The text, including parts that are shown later."""
        return self._content.text + self._pending

    @property
    def code(self) -> list[CodeRange]:
        """The visible code blocks."""
        return self._content.code

    def code_title(self, code: CodeRange) -> str:
        """The header of a code block: its language, and a note for diagrams, which are not rendered."""
        if code.language.lower() in _DIAGRAMS:
            return self.tr("{name} · a diagram, shown as its text").format(name=code.language)
        return code.language or self.tr("text")

    def set_markdown(self, text: str) -> None:
        """Replace the text."""
        self._forget_pending()
        self._content.set_text(text)
        self._place_buttons()
        self._on_size_changed()

    def set_plain(self, text: str) -> None:
        """Replace the text by plain text without Markdown."""
        self._forget_pending()
        self._content.set_plain(text)
        self._place_buttons()

    def fit_width(self, width: int) -> int:
        """Lay out for this width, visible or not. Returns the height."""
        if self.minimumWidth() != width or self.maximumWidth() != width:
            self.setFixedWidth(width)
        if self._document.textWidth() != width:  # setting the width lays everything out again
            self._document.setTextWidth(width)
            self._on_size_changed()
        return self.height()

    def ideal_width(self) -> int:
        """The width of the longest line without wrapping."""
        self._document.setTextWidth(-1)
        return math.ceil(self._document.idealWidth()) + 1

    def append_markdown(self, text: str) -> None:
        """Append streamed text. Only the last block is laid out again."""
        self._pending += text
        if self._took_s < _LONG_S or self._content.num_unsettled < _LARGE:
            self._show_pending()
        elif not self._later.isActive():
            self._later.start(min(round(self._took_s * 1000 * _SHARE), _LONGEST_WAIT_MS))

    def _show_pending(self) -> None:
        text, stable = self._pending, self._content.num_stable_code
        self._forget_pending()
        started = time.perf_counter()
        self._content.append(text)
        self._place_buttons(stable)
        self._on_size_changed()
        self._took_s = time.perf_counter() - started

    def _forget_pending(self) -> None:
        self._later.stop()
        self._pending = ""

    def loadResource(self, kind: int, name: QUrl | str) -> object:
        """Return nothing: model output must not read files or the network."""
        del kind, name
        return b""

    def sizeHint(self) -> QSize:
        """As high as the text."""
        return QSize(self.width(), self.height())

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Leave scrolling to the transcript."""
        event.ignore()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Move the copy buttons."""
        super().resizeEvent(event)
        self._place_buttons()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint code frames and quote bars behind the text."""
        painter = QPainter(self.viewport())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens = self._theme.tokens
        codes = self._content.code
        for number in range(self._first_code_at(event.rect().top()), len(codes)):
            code = codes[number]
            box = self._code_box(code)
            if box.top() > event.rect().bottom():
                break
            painter.setPen(QPen(tokens.colour("border"), 1))
            painter.setBrush(tokens.colour("code"))
            painter.drawRoundedRect(box, tokens.radius, tokens.radius)
            painter.setPen(tokens.colour("muted"))
            painter.setFont(self._theme.font("small"))
            header = QRectF(box.left() + 1.5 * tokens.unit, box.top(), box.width(), CODE_HEADER_UNITS * tokens.unit)
            painter.drawText(header, Qt.AlignmentFlag.AlignVCenter, self.code_title(code))
        self._paint_quotes(painter, event.rect().top(), event.rect().bottom())
        painter.end()
        super().paintEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        """Translate the tooltips of the copy buttons after a language change."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            for button in self._buttons:
                button.setToolTip(self.tr("Copy code"))

    def _first_code_at(self, top: int) -> int:
        """Index of the first code block that ends below `top`."""
        return bisect_left(self._content.code, float(top), key=lambda code: self._code_box(code).bottom())

    def _paint_quotes(self, painter: QPainter, top: int, bottom: int) -> None:
        layout = self._document.documentLayout()
        unit = self._theme.tokens.unit
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._theme.tokens.colour("border"))
        position = layout.hitTest(QPointF(0, top), Qt.HitTestAccuracy.FuzzyHit)
        block = self._document.findBlock(max(position, 0))
        while block.isValid():
            box = layout.blockBoundingRect(block)
            if box.top() > bottom:
                break
            for level in range(int(block.blockFormat().property(QUOTE) or 0)):
                painter.drawRect(QRectF(level * 2 * unit, box.top(), 3, box.height() + unit / 2))
            block = block.next()

    def _code_box(self, code: CodeRange) -> QRectF:
        document = self._document
        layout = document.documentLayout()
        unit = self._theme.tokens.unit
        first = layout.blockBoundingRect(document.findBlockByNumber(code.first))
        last = layout.blockBoundingRect(document.findBlockByNumber(code.last))
        top = first.top() - CODE_HEADER_UNITS * unit
        bottom = last.bottom() + CODE_PADDING_UNITS * unit
        return QRectF(QPointF(0.5, top + 0.5), QPointF(self.viewport().width() - 0.5, bottom - 0.5))

    def _place_buttons(self, first: int = 0) -> None:
        """Place the copy buttons, starting with code block number `first`."""
        codes = self._content.code
        while len(self._buttons) > len(codes):
            self._buttons.pop().deleteLater()
        while len(self._buttons) < len(codes):
            self._buttons.append(self._copy_button(len(self._buttons)))
        unit = self._theme.tokens.unit
        for button, code in zip(self._buttons[first:], codes[first:], strict=True):
            box = self._code_box(code)
            side = round(CODE_HEADER_UNITS * unit) - unit // 2
            button.setGeometry(round(box.right()) - side - unit // 4, round(box.top()) + unit // 4, side, side)
            button.show()

    def _copy_button(self, number: int) -> QToolButton:
        button = QToolButton(self.viewport())
        button.setIcon(self._theme.icon("copy", "muted"))
        button.setToolTip(self.tr("Copy code"))
        button.setAccessibleName(self.tr("Copy code"))
        button.setCursor(Qt.CursorShape.ArrowCursor)

        def copy() -> None:
            QGuiApplication.clipboard().setText(self._content.code[number].code)
            button.setIcon(self._theme.icon("check", "ok"))
            QTimer.singleShot(_COPIED_MS, button, lambda: button.setIcon(self._theme.icon("copy", "muted")))

        button.clicked.connect(copy)
        return button

    def _on_size_changed(self) -> None:
        height = max(math.ceil(self._document.size().height()), 1)
        if self._content.code:  # the frame of a final code block extends below its last line
            height = max(height, math.ceil(self._code_box(self._content.code[-1]).bottom() + 1))
        if height != self.height():
            self.setFixedHeight(height)
            self.height_changed.emit()

    def _on_formulas(self) -> None:
        if self._content.num_formulas and not self._content.plain:
            self._redraw.start()

    def _show_formulas(self) -> None:
        """Replace formula source texts by their images."""
        self.set_markdown(self.markdown)
        self.height_changed.emit()

    def createMimeDataFromSelection(self) -> QMimeData:
        """Copy formulas as their source text."""
        made = super().createMimeDataFromSelection()
        text = made.text()
        if BREAK in text and BREAK not in self.markdown:
            text = text.replace(BREAK, "")
            made = QMimeData()
            made.setText(text)
        if OBJECT_LETTER in text:
            for source in self._selected_formulas():
                text = text.replace(OBJECT_LETTER, source, 1)
            made = QMimeData()
            made.setText(text)
        return made

    def _selected_formulas(self) -> list[str]:
        chosen, found = self.textCursor(), []
        for position in range(chosen.selectionStart(), chosen.selectionEnd()):
            if self._document.characterAt(position) == OBJECT_LETTER:
                cursor = QTextCursor(self._document)
                cursor.setPosition(position + 1)
                found.append(str(cursor.charFormat().property(SOURCE) or ""))
        return found

    def _on_theme_changed(self) -> None:
        text = self.markdown
        plain = self._content.plain
        self._content = MarkdownDocument(self._document, Formats(self._theme))
        for button in self._buttons:
            button.setIcon(self._theme.icon("copy", "muted"))
        if plain:
            self.set_plain(text)
        else:
            self.set_markdown(text)
        self.height_changed.emit()  # the new font may need another width

    def _on_anchor_clicked(self, url: QUrl) -> None:
        offer_link(url, self)


def offer_link(url: QUrl, parent: QWidget) -> None:
    """Ask whether to open a link that a model or a page wrote; it is shown in full."""
    if url.scheme().lower() not in _OPENABLE:
        return
    title = QCoreApplication.translate("MarkdownView", "Open link?")
    box = QMessageBox(QMessageBox.Icon.NoIcon, title, "", parent=parent)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setText(
        QCoreApplication.translate("MarkdownView", "The answer contains this link. Open it in your browser?")
    )
    box.setInformativeText(url.toString())
    box.setStandardButtons(QMessageBox.StandardButton.Open | QMessageBox.StandardButton.Cancel)
    box.setDefaultButton(QMessageBox.StandardButton.Cancel)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.button(QMessageBox.StandardButton.Open).clicked.connect(lambda: QDesktopServices.openUrl(url))
    box.open()
