"""The message composer, which grows with the text, accepts files and shows the context usage."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import (
    QBuffer,
    QByteArray,
    QCoreApplication,
    QEvent,
    QMimeData,
    QObject,
    QSize,
    Qt,
    QTimer,
    Signal,
)
from PySide6.QtGui import (
    QDragEnterEvent,
    QDropEvent,
    QFocusEvent,
    QImage,
    QImageWriter,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QResizeEvent,
)
from PySide6.QtWidgets import (
    QApplication,
    QFileDialog,
    QFrame,
    QPlainTextEdit,
    QSizePolicy,
    QToolButton,
    QWidget,
)

from app.attachments import (
    IMAGES,
    MAX_IMAGE_BYTES,
    MAX_TEXT_BYTES,
    Document,
    DocumentError,
    parted,
    read,
)
from app.db.records import Attachment
from app.gui.background import Background
from app.gui.chat.answer_stats import number
from app.gui.chat.context_meter import ContextMeter
from app.gui.chat.request import estimate_tokens
from app.gui.formatted import plain_tip
from app.gui.reasons import error_message
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, button, clear, framed, holding, label, row, stack
from app.gui.widgets.elided import ElidedLabel
from app.gui.widgets.flow import Flow
from app.gui.widgets.growing_text import GrowingText

_MOST_LINES = 10
_SHOWN_WAITING = 200  # characters
_PASTED, _PASTED_IMAGE = "pasted text", "pasted image"
MOST_CHIPS = 12  # files that are shown by name
_NAMED_PROBLEMS = 5  # files whose problem is named
_NAMED = 40  # further files that the tooltip of their number names
_LATER_MS = 100
_AROUND = 8  # pixels of padding above and below the text
_LONG_TEXT = 10_000  # characters; a longer pasted text becomes an attachment
_BESIDE_HINT = 76  # pixels of margins and gaps in the line of the hint


def local_files(source: QMimeData) -> list[str]:
    """The files of this computer in what is dropped or pasted, without addresses of web pages."""
    return [url.toLocalFile() for url in source.urls() if url.isLocalFile()]


class _Editor(GrowingText):
    """Text editor: Enter sends, Shift+Enter inserts a line break."""

    send_pressed = Signal()
    files_given = Signal(list)
    text_given = Signal(str)
    image_given = Signal(QImage)
    prompts_wanted = Signal()
    focus_changed = Signal(bool)

    def __init__(self, *, attaches: bool) -> None:
        """Create the editor. `attaches`: a long text becomes an attachment when it is pasted."""
        super().__init__(1, _MOST_LINES, _AROUND)
        self._attaches = attaches
        self.setProperty("kind", "bare")
        self.setTabChangesFocus(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.document().setDocumentMargin(2)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Send on Enter and Ctrl+Enter. "/" in an empty editor opens the saved prompts."""
        if event.key() in {Qt.Key.Key_Return, Qt.Key.Key_Enter} and not (
            event.modifiers() & Qt.KeyboardModifier.ShiftModifier
        ):
            self.send_pressed.emit()
            return
        if event.text() == "/" and not self.toPlainText():
            self.prompts_wanted.emit()
            return
        super().keyPressEvent(event)

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        """Accept files and images as well as text."""
        return source.hasUrls() or source.hasImage() or super().canInsertFromMimeData(source)

    def insertFromMimeData(self, source: QMimeData) -> None:
        """Attach files, long texts, and an image without text; insert other text as plain text."""
        files = local_files(source)
        if files:
            self.files_given.emit(files)
        elif source.hasImage() and not source.hasText():
            self.image_given.emit(source.imageData())
        elif self._attaches and len(source.text()) > _LONG_TEXT:
            self.text_given.emit(source.text())
        else:
            self.insertPlainText(source.text())

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Report the focus, which the frame shows."""
        super().focusInEvent(event)
        self.focus_changed.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        """Report the focus, which the frame shows."""
        super().focusOutEvent(event)
        self.focus_changed.emit(False)


_SEND = 32  # side of the send button in pixels at the normal text size


class _SendButton(QToolButton):
    """A button that sends, and then stops: a double click only sends."""

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Ignore the second press."""
        event.accept()


class Composer(QFrame):
    """Editor, attachments, send and stop buttons."""

    sent = Signal(str, tuple)
    stopped = Signal()
    draft_changed = Signal()
    failed = Signal(str)
    prompts_wanted = Signal()
    source_removed = Signal()
    message_taken = Signal()  # the user sent the draft, or left it
    models_given = Signal(list)  # for the library
    read_for_other = Signal(int, object)  # a file for the draft of a chat that is not shown any more

    def __init__(self, theme: Theme, background: Background, *, queues: bool = False) -> None:
        """Create a composer. `queues`: a message that cannot be sent yet waits, and a long text is attached."""
        super().__init__()
        self._theme, self._background, self._queues = theme, background, queues
        self._queue: list[tuple[str, tuple[Attachment, ...]]] = []
        self._source = ""  # title of the documents that this chat answers from
        self.setProperty("kind", "composer")
        self.setAcceptDrops(True)
        self.attachments: list[Attachment] = []
        self._chat = 0  # the chat whose draft is shown
        self._reading: list[int] = []  # chats of the files that are being read
        self._sends_when_read = False
        self._busy = False
        self._ready = False
        self._sees = True
        self.editor = _Editor(attaches=queues)
        self.editor.setPlaceholderText(self.tr("Ask anything"))
        self.editor.setAccessibleName(self.tr("Message"))
        self.editor.send_pressed.connect(self.send)
        self.editor.files_given.connect(self.attach)
        self.editor.text_given.connect(self._attach_text)
        self.editor.image_given.connect(self._attach_image)
        self.editor.prompts_wanted.connect(self.prompts_wanted)
        self.editor.focus_changed.connect(self._on_focus_changed)
        self.editor.textChanged.connect(self._on_text_changed)
        self._waiting = stack(spacing=4)
        self._chips = Flow()
        self._chips.hide()
        self._later = QTimer(self)
        self._later.setSingleShot(True)
        self._later.setInterval(_LATER_MS)
        self._later.timeout.connect(self._show_attached)
        self.meter = ContextMeter(theme)
        self.meter.hide()
        self._attach = IconButton(theme, "attach", self.tr("Attach files"), self._choose_files)
        self._prompts = IconButton(theme, "prompts", self.tr("Saved prompts (/)"), self.prompts_wanted.emit)
        self._send = _SendButton()
        self._send.setProperty("kind", "send")
        self._send.clicked.connect(self._on_send_clicked)
        theme.changed.connect(self._refresh)
        self._hint = label(self.tr("Enter sends · Shift+Enter for a new line"), "small")
        self._hint.setMinimumWidth(1)  # otherwise the hint's width limits how narrow the composer can get
        self._tools, self._voice = row(spacing=8), row(spacing=8)
        self._left = Flow(spacing=8)  # a second line where there is little space
        for control in (self._attach, self._prompts, holding(self._voice), holding(self._tools)):
            self._left.add(control)
        self._signs = stack(spacing=4)
        self.setLayout(
            stack(
                self._signs,
                self._waiting,
                self._chips,
                self.editor,
                row(
                    self._left,
                    self._hint,
                    1,
                    self.meter,
                    self._send,
                    spacing=8,
                ),
                spacing=8,
                margins=(16, 12, 12, 8),
            )
        )
        self._refresh()

    def set_words(self, placeholder: str, name: str) -> None:
        """Set the placeholder and the accessible name of the editor."""
        self.editor.setPlaceholderText(placeholder)
        self.editor.setAccessibleName(name)

    def add_tool(self, widget: QWidget) -> None:
        """Add a page's control next to the attach button."""
        self._tools.addWidget(widget)

    def add_voice(self, control: QWidget | None, sign: QWidget) -> None:
        """Add a button for voice, and a bar above the message that shows its state."""
        if control is not None:
            self._voice.addWidget(control)
        self._signs.addWidget(sign)

    @property
    def text(self) -> str:
        return self.editor.toPlainText()

    @property
    def ready(self) -> bool:
        """Whether a model is available."""
        return self._ready

    def set_text(self, text: str) -> None:
        if text != self.text:
            self.editor.setPlainText(text)

    def set_draft(self, text: str, attachments: Sequence[Attachment]) -> None:
        self.set_text(text)
        if self.attachments or attachments:
            self.attachments = list(attachments)
            self._show_chips()

    def draft_tokens(self) -> int:
        return estimate_tokens(self.text) + sum(estimate_tokens(item.text) for item in self.attachments)

    def set_busy(self, busy: bool) -> None:
        """Turn the send button into a stop button while a response is generated."""
        self._busy = busy
        self._refresh()

    def set_ready(self, ready: bool) -> None:
        """Set whether a model is available."""
        self._ready = ready
        self._refresh()

    def set_sees(self, sees: bool) -> None:
        """Set whether the model accepts images. If not, attached images are marked."""
        if sees != self._sees:
            self._sees = sees
            self._show_chips()

    def send(self) -> None:
        """Send the draft if it is not empty. Without a model, or during a response, it waits or stays."""
        text = self.text.strip()
        if not (text or self.attachments):
            return
        if not (self._queues or self._free):
            reason = (
                self.tr("the last request is still running") if self._busy else self.tr("there is no model yet")
            )
            self.failed.emit(self.tr("Not sent: {reason}. Your text stays here.").format(reason=reason))
            return
        if self._chat in self._reading:
            self._sends_when_read = True
            return
        attachments = tuple(self.attachments)
        self.message_taken.emit()
        self.clear()
        self.submit(text, attachments)

    def submit(self, text: str, attachments: tuple[Attachment, ...] = ()) -> None:
        """Send this message, or let it wait until a model is available and no response is being generated."""
        if self._free and not self._queue:
            self.sent.emit(text, attachments)
            return
        self._queue.append((text, attachments))
        self._show_waiting()

    def send_next(self) -> None:
        """Send the first waiting message, if it can be sent now."""
        if self._queue and self._free:
            text, attachments = self._queue.pop(0)
            self._show_waiting()
            self.sent.emit(text, attachments)

    def take_back(self) -> None:
        """Put all waiting messages in front of the draft."""
        if self._queue:
            waiting, self._queue = self._queue, []
            self._show_waiting()
            self.give_back(*waiting)

    def give_back(self, *messages: tuple[str, tuple[Attachment, ...]]) -> None:
        """Put messages that could not be sent in front of the draft."""
        texts = [text for text, _ in messages if text] + ([self.text] if self.text else [])
        self.set_draft("\n\n".join(texts), [item for _, items in messages for item in items] + self.attachments)

    @property
    def _free(self) -> bool:
        return self._ready and not self._busy

    def _show_waiting(self) -> None:
        clear(self._waiting)
        for text, attachments in self._queue:
            shown = " ".join(text.split())[:_SHOWN_WAITING] or ", ".join(item.name for item in attachments)
            words = self.tr("Sent after this answer:") if self._busy else self.tr("Sent when the model is there:")
            edit = IconButton(self._theme, "edit", self.tr("Edit the waiting message"), self.take_back, size=16)
            drop = partial(self._drop, (text, attachments))
            remove = IconButton(self._theme, "close", self.tr("Discard the waiting message"), drop, size=14)
            holder = framed("note")
            line = row(label(words, "small"), ElidedLabel(shown), edit, remove, margins=(8, 0, 2, 0), grow=1)
            holder.setLayout(line)
            self._waiting.addWidget(holder)

    def _drop(self, waiting: tuple[str, tuple[Attachment, ...]]) -> None:
        if waiting in self._queue:  # it may have been sent
            self._queue.remove(waiting)
        self._show_waiting()

    def show_source(self, title: str) -> None:
        """Show the documents that this chat answers from; "": none."""
        if title != self._source:
            self._source = title
            self._show_chips()

    def _attach_text(self, text: str) -> None:
        number = sum(item.name.startswith(_PASTED) for item in self.attachments) + 1
        name = f"{_PASTED} {number}.txt"
        if len(text) > MAX_TEXT_BYTES:
            self.failed.emit(error_message(DocumentError(name, f"it is larger than {MAX_TEXT_BYTES >> 20} MiB")))
            return
        self._add(Attachment(name, "text/plain", text))

    def _attach_image(self, image: QImage) -> None:
        count = sum(item.name.startswith(_PASTED_IMAGE) for item in self.attachments) + 1
        self._read_all([partial(_png, f"{_PASTED_IMAGE} {count}.png", image)])

    def clear(self) -> None:
        self.attachments.clear()
        self._show_chips()
        self.editor.clear()

    def attach(self, files: list[str]) -> None:
        """Read these files and add them to the draft."""
        models, files = parted(files)
        if models:
            self.models_given.emit(models)
        self._read_all([partial(read, Path(name)) for name in files])

    def _read_all(self, reads: Sequence[Callable[[], Document]]) -> None:
        """Add what these functions return to the draft. A message that is sent meanwhile waits for it."""
        chat, problems = self._chat, list[str]()

        def done(document: Document) -> None:
            item = Attachment(document.name, document.mime, document.text, document.data)
            if chat == self._chat:
                self._add(item)
            else:
                self.read_for_other.emit(chat, item)
            self._end_reading(chat)

        def failed(error: Exception) -> None:
            self._sends_when_read = False
            self._end_reading(chat)
            problems.append(error_message(error))
            more = len(problems) - _NAMED_PROBLEMS
            rest = [self.tr("Not attached: {n} more").format(n=number(more))] if more > 0 else []
            self.failed.emit("\n".join(problems[:_NAMED_PROBLEMS] + rest))

        for each in reads:
            self._reading.append(chat)
            self._background.run(each, done, failed, self)

    def _end_reading(self, chat: int) -> None:
        self._reading.remove(chat)
        if self._sends_when_read and self._chat not in self._reading:
            self._sends_when_read = False
            self.send()

    def show_chat(self, chat: int) -> None:
        """Use the draft of this chat from now on."""
        if chat != self._chat:
            self._chat, self._sends_when_read = chat, False

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Hide the hint if there is too little space."""
        super().resizeEvent(event)
        beside = self._left.sizeHint().width() + self.meter.minimumWidth() + self._send.minimumWidth()
        self._hint.setVisible(self.width() > self._hint.sizeHint().width() + beside + _BESIDE_HINT)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Accept dropped files."""
        if local_files(event.mimeData()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        self.attach(local_files(event.mimeData()))
        event.acceptProposedAction()

    def _add(self, item: Attachment) -> None:
        self.attachments.append(item)
        if len(self.attachments) <= MOST_CHIPS:
            self._show_attached()
        else:  # of many dropped files, only some are shown individually
            self._later.start()

    def _show_attached(self) -> None:
        self._show_chips()
        self.draft_changed.emit()

    def _show_chips(self) -> None:
        self._chips.clear()
        if self._source:
            words = self.tr("Answers from {name}").format(name=self._source)
            remove = IconButton(
                self._theme, "close", self.tr("Answer without these documents"), self.source_removed.emit, size=12
            )
            self._chips.add(self._chip(label(words, "small"), remove))
        for item in self.attachments[:MOST_CHIPS]:
            size = (
                (self.tr("image") if self._sees else self.tr("image, which this model cannot see"))
                if item.data
                else self.tr("~{n} tokens").format(n=number(estimate_tokens(item.text)))
            )
            text = label(f"\u200e{item.name} · {size}", "small")  # keeps the size after a right-to-left name
            text.setToolTip(plain_tip(item.text[:2000]))
            remove = IconButton(
                self._theme, "close", self.tr("Remove {name}").format(name=item.name), self._remover(item), size=12
            )
            self._chips.add(self._chip(text, remove))
        if more := self.attachments[MOST_CHIPS:]:
            tokens = number(sum(estimate_tokens(item.text) for item in more))
            words = self.tr("{n} more files · ~{tokens} tokens").format(n=number(len(more)), tokens=tokens)
            text = label(words, "small")
            text.setToolTip(plain_tip("\n".join(item.name for item in more[:_NAMED])))
            self._chips.add(self._chip(text, button(self.tr("Remove all files"), self._remove_all, "link")))
        self._chips.setVisible(bool(self.attachments or self._source))
        self._refresh()

    @staticmethod
    def _chip(words: QWidget, remove: QWidget) -> QFrame:
        return framed("note", row(words, remove, spacing=4, margins=(8, 0, 2, 0)))

    def _remover(self, item: Attachment) -> Callable[[], None]:
        def remove() -> None:
            self.attachments.remove(item)
            self._show_chips()
            self.draft_changed.emit()

        return remove

    def _remove_all(self) -> None:
        self.attachments.clear()
        self._show_attached()

    def _choose_files(self) -> None:
        dialog = QFileDialog(self, self.tr("Attach files"), fileMode=QFileDialog.FileMode.ExistingFiles)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.filesSelected.connect(self.attach)
        dialog.open()

    def _on_send_clicked(self) -> None:
        if self._busy:
            self.stopped.emit()
        else:
            self.send()

    def _on_text_changed(self) -> None:
        if self._can_press != self._send.isEnabled():  # not with every key
            self._show_send()
        self.draft_changed.emit()

    def _on_focus_changed(self, focused: bool) -> None:
        self.setProperty("focused", focused)
        self.style().unpolish(self)
        self.style().polish(self)

    def _refresh(self) -> None:
        side = self._theme.tokens.scaled(_SEND)
        self._send.setFixedSize(side, side)
        self._send.setIconSize(QSize(side, side) * 9 / 16)
        words = self.tr("Stop (Esc)") if self._busy else self.tr("Send")
        if self._queues:
            hint = self.tr("Enter sends · Shift+Enter for a new line")
            self._hint.setText(self.tr("Enter sends it after this answer") if self._busy else hint)
        self._send.setToolTip(plain_tip(words))
        self._send.setAccessibleName(words)
        self._show_send()

    @property
    def _can_press(self) -> bool:
        return self._busy or ((self._ready or self._queues) and bool(self.text.strip() or self.attachments))

    def _show_send(self) -> None:
        can = self._can_press
        self._send.setEnabled(can)
        self._send.setIcon(self._theme.icon("stop" if self._busy else "send", "on_accent" if can else "muted"))


def _png(name: str, image: QImage) -> Document:
    """An image as an attachment. Raises: DocumentError: it is too large."""
    buffer = QBuffer()
    buffer.open(QBuffer.OpenModeFlag.WriteOnly)
    QImageWriter(buffer, QByteArray(b"png")).write(image)
    if buffer.size() > MAX_IMAGE_BYTES:
        raise DocumentError(name, f"it is larger than {MAX_IMAGE_BYTES >> 20} MiB")
    return Document(name, IMAGES[".png"], data=bytes(buffer.data().data()))


_Held = Qt.KeyboardModifier
_NO_SHORTCUT = (_Held.NoModifier, _Held.ShiftModifier, _Held.KeypadModifier)


class WritingFocus(QObject):
    """Gives `page`'s `editor` the keyboard focus.

    The button that starts a response disappears. Qt would move its focus to the next widget of the window, so that
    a follow-up message would not reach the editor.
    """

    def __init__(self, page: QWidget, editor: QPlainTextEdit) -> None:
        super().__init__(page)
        self._page = page
        self._editor = editor
        page.installEventFilter(self)

    def take(self) -> None:
        """Focus the editor when a response starts, unless another text field has the focus."""
        QTimer.singleShot(0, self, self._take)  # after the pressed button has been removed

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Send keys that no widget of the page handled to the editor."""
        return (isinstance(event, QKeyEvent) and self._take_key(event)) or super().eventFilter(watched, event)

    def _take_key(self, event: QKeyEvent) -> bool:
        if event.type() != QEvent.Type.KeyPress:
            return False
        pasted = event.matches(QKeySequence.StandardKey.Paste)
        typed = event.modifiers() in _NO_SHORTCUT and event.text().isprintable() and event.text().strip() != ""
        if not (pasted or typed) or not self._editor.isVisible() or self._editor.hasFocus():
            return False
        self._editor.setFocus()
        QCoreApplication.sendEvent(self._editor, event)
        return True

    def _take(self) -> None:
        focus = QApplication.focusWidget()
        writes = focus is not None and focus.testAttribute(Qt.WidgetAttribute.WA_InputMethodEnabled)
        if self._page.isVisible() and self._page.isActiveWindow() and not writes:
            self._editor.setFocus()
