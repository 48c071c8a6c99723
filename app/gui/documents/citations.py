"""Citations below a response: the source passages, and sentences that no passage supports."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import QSize, Qt, QUrl
from PySide6.QtGui import QResizeEvent, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import (
    QDialog,
    QFrame,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QTextEdit,
    QVBoxLayout,
    QWidget,
)

from app.answer_facts import WebSource
from app.gui.app_context import AppContext
from app.gui.formatted import plain_tip
from app.gui.markdown.view import offer_link, shown_address
from app.gui.reasons import error_message, translated
from app.gui.widgets.basics import label, stack
from app.gui.widgets.popups import largest_dialog
from app.tools.types import shown_line
from engine.api.collections import Citations, PageText, Passage

_SENTENCE_CHARS = 120
_SHOWN_PASSAGES = 12


class _Source(QPushButton):
    """A source as a link, cut at its end if there is too little width. Screen readers get all of it."""

    def __init__(self, words: str, tip: str, on_click: Callable[[], object]) -> None:
        super().__init__()
        self.setProperty("kind", "link")
        self._words = words
        self.setAccessibleName(words)
        self.setToolTip(plain_tip(tip))
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self._show(self.fontMetrics().horizontalAdvance(words))
        self.clicked.connect(lambda _checked=False: on_click())

    def minimumSizeHint(self) -> QSize:
        """Any width."""
        return QSize(0, super().minimumSizeHint().height())

    def sizeHint(self) -> QSize:
        """The width of the whole text."""
        width = self.fontMetrics().horizontalAdvance(self._words)
        return QSize(width + self._padding, super().sizeHint().height())

    @property
    def _padding(self) -> int:
        """Pixels of the button that are not text."""
        shown = self.fontMetrics().horizontalAdvance(self.text().replace("&&", "&"))
        return super().sizeHint().width() - shown

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show(self.width() - self._padding)

    def _show(self, width: int) -> None:
        shown = self.fontMetrics().elidedText(self._words, Qt.TextElideMode.ElideRight, width)
        self.setText(shown.replace("&", "&&"))


class GroundsCard(QFrame):
    """The source passages as buttons that open their page, and a note with unsupported sentences."""

    def __init__(self, services: AppContext, grounds: Citations, answer: str) -> None:
        super().__init__()
        self._services, self._grounds = services, grounds
        self.setProperty("kind", "note")
        self.buttons = []
        lines: list[QWidget] = [
            label(f"{grounds.name}: {translated(grounds.why_detail, grounds.why)}", "small", wrap=True)
        ]
        for number, passage in enumerate(grounds.passages, 1):
            if number > _SHOWN_PASSAGES and f"[{number}]" not in answer:
                continue
            source = passage.label or self.tr("part {n}").format(n=passage.page)
            words = f"[{number}] {Path(passage.path).name}, {source}"
            source_button = _Source(words, passage.path, partial(self._open, passage))
            self.buttons.append(source_button)
            lines.append(source_button)
        loose = [answer[s.start : s.end] for s in grounds.checked if not s.carried and not s.doubt]
        doubtful = [answer[s.start : s.end] for s in grounds.checked if s.doubt]
        if loose:
            text = self.tr("Probably not supported by these passages (compared by words):")
            if any(sentence.cosine is not None for sentence in grounds.checked):
                text = self.tr("Probably not supported by these passages (compared by words and meaning):")
            if not grounds.passages:
                text = self.tr("Not from the documents:")
            lines.append(label(text, "small", wrap=True))
            lines += [label(f"\u2022 {text[:_SENTENCE_CHARS]}", "small", wrap=True) for text in loose]
        if doubtful:
            lines.append(
                label(
                    self.tr("The words are in these passages, but may say something else there:"),
                    "small",
                    wrap=True,
                )
            )
            lines += [label(f"\u2022 {text[:_SENTENCE_CHARS]}", "small", wrap=True) for text in doubtful]
        self._problem = label("", "small", wrap=True)
        self._problem.hide()
        self.setLayout(stack(*lines, self._problem, margins=(16, 8, 16, 8)))

    def _open(self, passage: Passage) -> None:
        api, key = self._services.api, self._grounds.id

        def work() -> PageText:
            return api.page_text(key, passage.document, passage.page, passage.id)

        self._services.background.run(work, partial(self._show_page, passage), self._fail, self, newest="page")

    def _fail(self, error: Exception) -> None:
        self._problem.setText(error_message(error))
        self._problem.show()

    def _show_page(self, passage: Passage, page: PageText) -> None:
        if page.path == passage.path:
            PageDialog(page, self).open()
            return
        # A rebuilt index gives its documents other numbers.
        text = self.tr("{name} is no longer in this collection, or was read again. Ask again to see the passage.")
        self._problem.setText(text.format(name=Path(passage.path).name))
        self._problem.show()


_SHOWN_TITLE = 80
_SHOWN_URL = 400


class SourcesCard(QFrame):
    """Pages of the web that an answer is based on; a click asks whether to open one."""

    def __init__(self, sources: Sequence[WebSource]) -> None:
        super().__init__()
        self.setProperty("kind", "note")
        lines: list[QWidget] = [label(self.tr("Sources"), "small")]
        for number, source in enumerate(sources[:_SHOWN_PASSAGES], 1):  # an imported chat may hold any number
            url = QUrl(source.url)
            title = shown_line((source.title or source.url)[:_SHOWN_TITLE])
            host = url.host(QUrl.ComponentFormattingOption.FullyEncoded)
            words = f"[{number}] {title} · {host[:_SHOWN_TITLE]}"
            lines.append(_Source(words, shown_address(url)[:_SHOWN_URL], partial(offer_link, url, self)))
        self.setLayout(stack(*lines, spacing=2, margins=(16, 8, 16, 8)))


class PageDialog(QDialog):
    """The text of a page with the cited passage highlighted."""

    def __init__(self, page: PageText, parent: QWidget) -> None:
        super().__init__(parent)
        source = page.label or self.tr("part {n}").format(n=page.number)
        self.setWindowTitle(f"{Path(page.path).name}, {source}")
        self.resize(QSize(720, 560).boundedTo(largest_dialog(parent)))
        self.text = QPlainTextEdit(page.text, readOnly=True)
        self.text.setAccessibleName(self.windowTitle())
        marked = QTextEdit.ExtraSelection()
        cursor = QTextCursor(self.text.document())
        cursor.setPosition(_utf16(page.text, page.start))
        cursor.setPosition(_utf16(page.text, page.end), QTextCursor.MoveMode.KeepAnchor)
        style = QTextCharFormat()
        style.setBackground(self.palette().highlight())
        style.setForeground(self.palette().highlightedText())
        marked.cursor, marked.format = cursor, style
        self.text.setExtraSelections([marked])
        self.passage = cursor.selectedText()
        top = QTextCursor(self.text.document())
        top.setPosition(_utf16(page.text, page.start))
        self.text.setTextCursor(top)
        self.text.centerCursor()
        layout = QVBoxLayout(self)
        layout.addWidget(label(page.path, "small", wrap=True, selectable=True))
        layout.addWidget(self.text)


def _utf16(text: str, position: int) -> int:
    """Convert a character offset to UTF-16 units, which Qt uses."""
    return len(text[:position].encode("utf-16-le")) // 2
