"""Shows a message's text at full height. Code blocks have a frame, a language label and a copy button."""

import math
import time
from bisect import bisect_left
from functools import partial

from PySide6.QtCore import (
    QCoreApplication,
    QEvent,
    QMimeData,
    QPoint,
    QPointF,
    QRect,
    QRectF,
    QSize,
    Qt,
    QTimer,
    QUrl,
    Signal,
)
from PySide6.QtGui import (
    QContextMenuEvent,
    QDesktopServices,
    QGuiApplication,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QTextCursor,
    QTextDocument,
    QTextTable,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QMessageBox, QSizePolicy, QTextBrowser, QToolButton, QWidget

from app.gui.formatted import plain_tip
from app.gui.markdown import code_actions
from app.gui.markdown.document import CodeRange, MarkdownDocument
from app.gui.markdown.formats import CELLS, CODE_PADDING_UNITS, QUOTE, TABLE, Formats, code_header
from app.gui.markdown.formula_object import OBJECT_LETTER, SOURCE
from app.gui.markdown.parse import BREAK
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, set_kind
from app.gui.widgets.popups import Menu

_OPENABLE = frozenset({"http", "https", "mailto"})
_DIAGRAMS = frozenset({"mermaid", "plantuml", "graphviz", "dot"})  # languages rendered as diagrams elsewhere
_COPIED_MS = 1500
_ICON = 16  # side of the icons of code blocks at the normal text size
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
        self._buttons: list[tuple[QToolButton, QToolButton]] = []  # copy and more, by code block
        self._unwrapped: dict[int, code_actions.UnwrappedCode] = {}  # keyed by the number of the code block
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
        self.highlighted.connect(lambda url: self.setToolTip(plain_tip(shown_address(url))))
        # Use a separate document: the wrapper of the built-in one becomes invalid when one of its lists is deleted.
        self._document = QTextDocument(self)
        self.setDocument(self._document)
        self.setCursorWidth(0)
        self._content = MarkdownDocument(self._document, Formats(theme), self._unwrapped)
        # Unwrapped lines are wider than the view; their own scroll bar moves them, not the whole text.
        sideways = self.horizontalScrollBar()
        sideways.rangeChanged.connect(lambda _low, high: sideways.setRange(0, 0) if high else None)
        self._table_button = IconButton(theme, "copy", self.tr("Copy table"), self._on_table_button, size=14)
        self._table_button.setParent(self.viewport())
        set_kind(self._table_button, "float")
        self._table_button.hide()
        self._document.documentLayout().documentSizeChanged.connect(self._on_size_changed)
        theme.changed.connect(self._on_theme_changed)
        self._redraw = QTimer(self, singleShot=True, interval=_FORMULAS_MS)
        self._redraw.timeout.connect(self._show_formulas)
        theme.formulas.ready.connect(self._on_formulas)
        self._pending = ""
        self._took_s = 0.0
        self._later = QTimer(self, singleShot=True)
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
        if self._unwrapped and not text.startswith(self.markdown):
            self._wrap_all()
        self._forget_pending()
        self._table_button.hide()
        self._content.set_text(text)
        self._place_buttons()
        self._on_size_changed()

    def set_plain(self, text: str) -> None:
        """Replace the text by plain text without Markdown."""
        self._wrap_all()
        self._forget_pending()
        self._table_button.hide()
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
            header = QRectF(box.left() + 1.5 * tokens.unit, box.top(), box.width(), code_header(self._theme))
            painter.drawText(header, Qt.AlignmentFlag.AlignVCenter, self.code_title(code))
        self._paint_quotes(painter, event.rect().top(), event.rect().bottom())
        painter.end()
        super().paintEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        """Translate the tooltips of the copy buttons after a language change."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            for copy, more in self._buttons:
                copy.setToolTip(self.tr("Copy code"))
                more.setToolTip(self.tr("More for this code"))

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
        top = first.top() - code_header(self._theme)
        bottom = last.bottom() + CODE_PADDING_UNITS * unit
        return QRectF(QPointF(0.5, top + 0.5), QPointF(self.viewport().width() - 0.5, bottom - 0.5))

    def _place_buttons(self, first: int = 0) -> None:
        """Place the buttons of code blocks and their unwrapped lines, starting with code block number `first`."""
        codes = self._content.code
        while len(self._buttons) > len(codes):
            for button in self._buttons.pop():
                button.deleteLater()
        while len(self._buttons) < len(codes):
            number = len(self._buttons)
            more = self._code_button("more", self.tr("More for this code"))
            more.clicked.connect(
                lambda _checked=False, number=number: self.code_menu(number).below(self._buttons[number][1])
            )
            self._buttons.append((self._copy_button(number), more))
        unit = self._theme.tokens.unit
        side = code_header(self._theme) - unit // 2
        icon = self._theme.tokens.scaled(_ICON)
        for buttons, code in zip(self._buttons[first:], codes[first:], strict=True):
            box = self._code_box(code)
            for place, button in enumerate(reversed(buttons), 1):
                left = round(box.right()) - place * side - unit // 4
                button.setIconSize(QSize(icon, icon))
                button.setGeometry(left, round(box.top()) + unit // 4, side, side)
                button.show()
        for number in [number for number in self._unwrapped if number >= len(codes)]:
            self._unwrapped.pop(number).deleteLater()
        for number, lines in self._unwrapped.items():
            lines.show_code(codes[number], self._lines_rect(codes[number]))

    def _lines_rect(self, code: CodeRange) -> QRect:
        """The place of a code block's lines, with a scroll bar below them."""
        first = self._document.documentLayout().blockBoundingRect(self._document.findBlockByNumber(code.first))
        box = self._code_box(code)
        inset = 1.5 * self._theme.tokens.unit
        box.adjust(inset, 0, -1, -1)  # up to the frame: it hides the longer lines behind it
        box.setTop(first.top())
        return box.toRect()

    def _code_button(self, icon: str, words: str) -> QToolButton:
        button = QToolButton(self.viewport())
        button.setIcon(self._theme.icon(icon, "muted"))
        button.setToolTip(plain_tip(words))
        button.setAccessibleName(words)
        button.setCursor(Qt.CursorShape.ArrowCursor)
        return button

    def _copy_button(self, number: int) -> QToolButton:
        button = self._code_button("copy", self.tr("Copy code"))

        def copy() -> None:
            QGuiApplication.clipboard().setText(self._content.code[number].code)
            button.setIcon(self._theme.icon("check", "ok"))
            QTimer.singleShot(_COPIED_MS, button, lambda: button.setIcon(self._theme.icon("copy", "muted")))

        button.clicked.connect(copy)
        return button

    def code_menu(self, number: int) -> Menu:
        menu, code = Menu(self._theme, self), self._content.code[number]
        menu.add("download", self.tr("Save as a file…"), lambda: code_actions.save(code, self.window()))
        if code_actions.is_picture(code):
            menu.add("play", self.tr("Show the picture"), lambda: code_actions.Picture(code, self.window()).open())
        if code_actions.is_page(code):
            words = self.tr("Open in the browser, without scripts")
            menu.add("external", words, lambda: code_actions.open_page(code, self.window()))
        wraps = self.tr("Wrap long lines") if number in self._unwrapped else self.tr("Do not wrap lines")
        menu.add("file-text", wraps, lambda: self._turn_wrapping(number))
        return menu

    def _turn_wrapping(self, number: int) -> None:
        if number in self._unwrapped:
            self._unwrapped.pop(number).deleteLater()
        elif number < len(self._content.code):
            self._unwrapped[number] = code_actions.UnwrappedCode(self._theme, self.viewport())
            self._unwrapped[number].show()
        self.set_markdown(self.markdown)

    def _wrap_all(self) -> None:
        for lines in self._unwrapped.values():
            lines.deleteLater()
        self._unwrapped.clear()

    # -- tables

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Offer to copy the table below the pointer."""
        super().mouseMoveEvent(event)
        self._offer_table(event.position().toPoint())

    def leaveEvent(self, event: QEvent) -> None:
        """Hide the offer."""
        super().leaveEvent(event)
        self._table_button.hide()

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Show the usual menu, with the entries for a table if there is one."""
        menu = self.createStandardContextMenu(event.pos())
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        table = self._table_at(event.pos())
        if table is not None:
            menu.addSeparator()
            for words, source in self._table_sources(table):
                menu.addAction(words).triggered.connect(partial(self._copy_text, source))
        menu.popup(event.globalPos())

    def _table_at(self, place: QPoint) -> QTextTable | None:
        table = self.cursorForPosition(place).currentTable()
        return table if table is not None and self._table_rect(table).contains(place) else None

    def _table_rect(self, table: QTextTable) -> QRect:
        # Not the layout's rectangle of the frame, which is shifted by margins that Qt does not grant.
        layout, padding = self._document.documentLayout(), table.format().toTableFormat().cellPadding()
        corners = table.cellAt(0, 0), table.cellAt(table.rows() - 1, table.columns() - 1)
        first, last = (layout.blockBoundingRect(cell.firstCursorPosition().block()) for cell in corners)
        bounds: QRectF = first.united(last).adjusted(-padding, -padding, padding, padding)
        return bounds.toRect()

    def _offer_table(self, place: QPoint) -> None:
        button = self._table_button
        if button.isVisible() and button.geometry().contains(place):
            return  # pointer moves over the button arrive here, too
        table = self._table_at(place)
        if table is None:
            self._table_button.hide()
            return
        self._pointed = place
        rect, size = self._table_rect(table), self._table_button.sizeHint()
        # Next to the table without a gap, which the pointer could not cross; over it if there is no space.
        left = min(rect.right(), self.viewport().width() - size.width() - 1)
        self._table_button.setGeometry(left, rect.top(), size.width(), size.height())
        self._table_button.show()
        self._table_button.raise_()

    _pointed = QPoint()  # last position of the pointer in the table whose button is shown

    def _on_table_button(self) -> None:
        button = self._table_button
        table = self._table_at(self._pointed)
        if table is not None:
            self.table_menu(table).below(button)

    def table_menu(self, table: QTextTable) -> Menu:
        menu = Menu(self._theme, self)
        for words, source in self._table_sources(table):
            menu.add("copy", words, partial(self._copy_text, source))
        return menu

    def _table_sources(self, table: QTextTable) -> tuple[tuple[str, str], ...]:
        shape = table.format()
        return (
            (self.tr("Copy table as Markdown"), str(shape.property(TABLE))),
            (self.tr("Copy table for a spreadsheet"), str(shape.property(CELLS))),
        )

    @staticmethod
    def _copy_text(text: str, _checked: bool = False) -> None:
        QGuiApplication.clipboard().setText(text)

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
        mime = super().createMimeDataFromSelection()
        text = mime.text()
        if BREAK in text and BREAK not in self.markdown:
            text = text.replace(BREAK, "")
            mime = QMimeData()
            mime.setText(text)
        if OBJECT_LETTER in text:
            for source in self._selected_formulas():
                text = text.replace(OBJECT_LETTER, source, 1)
            mime = QMimeData()
            mime.setText(text)
        return mime

    def _selected_formulas(self) -> list[str]:
        chosen, sources = self.textCursor(), []
        for position in range(chosen.selectionStart(), chosen.selectionEnd()):
            if self._document.characterAt(position) == OBJECT_LETTER:
                cursor = QTextCursor(self._document)
                cursor.setPosition(position + 1)
                sources.append(str(cursor.charFormat().property(SOURCE) or ""))
        return sources

    def _on_theme_changed(self) -> None:
        text = self.markdown
        plain = self._content.plain
        self._content = MarkdownDocument(self._document, Formats(self._theme), self._unwrapped)
        for copy, more in self._buttons:
            copy.setIcon(self._theme.icon("copy", "muted"))
            more.setIcon(self._theme.icon("more", "muted"))
        if plain:
            self.set_plain(text)
        else:
            self.set_markdown(text)
        self.height_changed.emit()  # the new font may need another width

    def _on_anchor_clicked(self, url: QUrl) -> None:
        offer_link(url, self)


def shown_address(url: QUrl) -> str:
    """The address as it is opened: no letter of another script or hidden character disguises its host."""
    return url.toString(QUrl.ComponentFormattingOption.FullyEncoded)


def offer_link(url: QUrl, parent: QWidget) -> None:
    """Ask whether to open a link that a model or a page wrote; it is shown in full."""
    if url.scheme().lower() not in _OPENABLE:
        return
    title = QCoreApplication.translate("MarkdownView", "Open link?")
    box = QMessageBox(QMessageBox.Icon.NoIcon, title, "", parent=parent, textFormat=Qt.TextFormat.PlainText)
    box.setText(
        QCoreApplication.translate("MarkdownView", "The answer contains this link. Open it in your browser?")
    )
    box.setInformativeText(shown_address(url))
    box.setStandardButtons(QMessageBox.StandardButton.Open | QMessageBox.StandardButton.Cancel)
    box.setDefaultButton(QMessageBox.StandardButton.Cancel)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.button(QMessageBox.StandardButton.Open).clicked.connect(lambda: QDesktopServices.openUrl(url))
    box.open()
