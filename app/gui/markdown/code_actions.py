"""Actions on a code block: save it, turn off line wrapping, show it as an image or a page.

The code is model output: saving and showing it runs nothing and loads nothing.
"""

import html
import re
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QProcess, QRect, QStandardPaths, Qt, QTimer, QUrl
from PySide6.QtGui import QDesktopServices, QPixmap, QTextBlockFormat, QTextCursor, QWheelEvent
from PySide6.QtWidgets import QDialog, QLabel, QMessageBox, QTextEdit, QWidget

from app.gui.markdown.document import CodeRange, write_code
from app.gui.markdown.formats import Formats
from app.gui.theme import Theme
from app.gui.widgets.basics import button, label, row, stack
from app.gui.widgets.popups import file_dialog
from devices.atomic_file import write_atomically
from devices.child_command import child_command

_TIME_MS = 60_000  # enough to start the child process on a busy computer and to draw
_SHOWN = (640, 440)  # pixels of a picture
_SVG = re.compile(r"(?:\s*<\?xml[^>]*>)?\s*<svg[\s>]", re.IGNORECASE)
_PAGE = re.compile(r"\s*(?:<!doctype html|<html[\s>])", re.IGNORECASE)
_PATTERN = re.compile(r"\*(\.\w+)")


def _tr(text: str) -> str:
    return QCoreApplication.translate("code", text)


def is_picture(code: CodeRange) -> bool:
    """Whether the code is an SVG image."""
    return bool(_SVG.match(code.code)) and code.language.lower() in {"", "svg", "xml", "html"}


def is_page(code: CodeRange) -> bool:
    """Whether the code is a web page."""
    return code.language.lower() in {"html", "htm", "xhtml"} or (not code.language and bool(_PAGE.match(code.code)))


def save(code: CodeRange, parent: QWidget) -> None:
    """Ask for a file, then write the code to it."""
    text = code.code + "\n"

    def write(name: str) -> None:
        try:
            Path(name).write_text(text, "utf-8")
        except OSError as error:
            words = _tr("The code could not be saved: {reason}").format(reason=error.strerror or error)
            _tell(words, parent)

    file_dialog(parent, _tr("Save code"), write, start=f"{_tr('code')}{ending(code.language)}", saves=True)


def ending(language: str) -> str:
    """The file name ending of a language that the highlighter knows, else .txt."""
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        patterns = get_lexer_by_name(language).filenames if language else []
    except ClassNotFound:
        patterns = []
    matches = (_PATTERN.fullmatch(pattern) for pattern in patterns)
    return next((match[1] for match in matches if match), ".txt")


# A page may neither load nor run anything. The frame is sandboxed: no scripts, no forms, no navigation by itself.
_WRAPPER = """<!DOCTYPE html>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
font-src data:; form-action 'none'; base-uri 'none'">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>body {{ margin: 0; font: 14px sans-serif; display: flex; flex-direction: column; height: 100vh }}
p {{ margin: 0; padding: 8px 12px; background: #eee; color: #222 }}
iframe {{ flex: 1; border: none; background: #fff }}</style>
<p>{note}</p>
<iframe sandbox title="{title}" srcdoc="{page}"></iframe>
"""
_SCRIPT, _SCRIPT_END = re.compile(r"<script\b", re.IGNORECASE), re.compile(r"</script\b", re.IGNORECASE)
# Some of these reach the network in spite of the policy: a link resolves host names, a refresh leaves the page.
_LEADS_OUT = re.compile(
    r"<(?=/?(?:script|link|meta|base|i?frame|frameset|object|embed|portal|form)\b)", re.IGNORECASE
)


def _without_scripts(page: str) -> str:
    """The page without its scripts. A script without an end extends to the end of the page, as in a browser."""
    parts, at = [], 0
    while (opening := _SCRIPT.search(page, at)) is not None:
        parts.append(page[at : opening.start()])
        ended = _SCRIPT_END.search(page, opening.end())
        at = page.find(">", ended.end()) + 1 if ended is not None else 0
        if not at:
            return "".join(parts)
    return "".join([*parts, page[at:]])


def preview_page(page: str) -> str:
    """A local web page that shows this page of a model without scripts and without network."""
    still = _LEADS_OUT.sub("&lt;", _without_scripts(page))
    note = _tr("A page from an answer, shown without its scripts and without network.")
    return _WRAPPER.format(title=_tr("Preview"), note=html.escape(note), page=html.escape(still))


def open_page(code: CodeRange, parent: QWidget) -> None:
    """Show a web page in the user's browser, from a local file that loads and runs nothing."""
    places = QStandardPaths.StandardLocation
    # A browser from a snap package can read neither temporary nor hidden folders.
    place = places.DownloadLocation if Path("/snap").is_dir() else places.TempLocation
    file = Path(QStandardPaths.writableLocation(place)) / "tessera-preview.html"
    try:
        # It replaces another user's link, which would lead the text elsewhere.
        write_atomically(file, preview_page(code.code).encode(), mode=0o600, durable=False)
    except OSError as error:
        _tell(_tr("The page could not be shown: {reason}").format(reason=error.strerror or error), parent)
        return
    if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(file))):
        _tell(_tr("No browser opened. The page is in {path}.").format(path=file), parent)


def _tell(words: str, parent: QWidget) -> None:
    box = QMessageBox(QMessageBox.Icon.NoIcon, "Tessera", "", QMessageBox.StandardButton.Close, parent)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setText(words)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.open()


class Picture(QDialog):
    """Shows the image that an SVG block describes, drawn in a child process."""

    def __init__(self, code: CodeRange, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(_tr("Picture"))
        self.picture = QLabel()
        self.picture.setFixedSize(*_SHOWN)
        self.picture.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.picture.setAccessibleName(_tr("Picture"))
        self.words = label(_tr("Drawing…"), "muted", wrap=True)
        close = button(_tr("Close"), self.close)
        items = (self.picture, self.words, row(1, close))
        self.setLayout(stack(*items, spacing=16, margins=(24, 24, 24, 24)))
        self._child = QProcess(self)
        self._child.setStandardErrorFile(QProcess.nullDevice())
        self._child.finished.connect(self._show)
        self._child.errorOccurred.connect(self._on_error)
        program, *arguments = child_command("app.gui.markdown.drawing_child")
        self._child.start(program, arguments)
        self._child.write(code.code.encode())
        self._child.closeWriteChannel()
        QTimer.singleShot(_TIME_MS, self, self._child.kill)
        self.finished.connect(self._stop)

    def _on_error(self, error: QProcess.ProcessError) -> None:
        if error == QProcess.ProcessError.FailedToStart:  # other errors are followed by the end of the process
            self._show()

    def _show(self) -> None:
        image = QPixmap()
        if image.loadFromData(self._child.readAllStandardOutput()):
            ratio = self.picture.devicePixelRatioF()
            whole = Qt.AspectRatioMode.KeepAspectRatio, Qt.TransformationMode.SmoothTransformation
            image = image.scaled(self.picture.size() * ratio, *whole)
            image.setDevicePixelRatio(ratio)
            self.picture.setPixmap(image)
            self.words.setText(_tr("Drawn without links, scripts and pictures from elsewhere."))
        else:
            self.words.setText(_tr("This is not an SVG image that can be drawn."))

    def _stop(self) -> None:
        self._child.blockSignals(True)
        if self._child.state() != QProcess.ProcessState.NotRunning:
            self._child.kill()
            self._child.waitForFinished(10_000)


class UnwrappedCode(QTextEdit):
    """The lines of one code block without wrapping, in front of those in the text."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._looks: tuple[object, ...] = ()
        self.setProperty("kind", "code")
        self.setReadOnly(True)
        self.setLineWrapMode(QTextEdit.LineWrapMode.NoWrap)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        upright = self.verticalScrollBar()  # all lines are visible, except for a fraction of a pixel
        upright.rangeChanged.connect(lambda _low, high: upright.setRange(0, 0) if high else None)
        self.document().setUndoRedoEnabled(False)
        self.document().setDocumentMargin(0)
        self.setAccessibleName(_tr("Code"))

    def show_code(self, code: CodeRange, place: QRect) -> None:
        """Show the code's lines at this place of the text."""
        self.setGeometry(place)
        looks = (code.code, code.language, self._theme.tokens)
        if looks == self._looks:
            return
        self._looks = looks
        formats = Formats(self._theme)
        line: QTextBlockFormat = formats.code_line(code.language, 0, first=False, last=False, wraps=False)
        line.setLeftMargin(0)
        self.clear()
        cursor = QTextCursor(self.document())
        cursor.setBlockFormat(line)
        write_code(cursor, code.code, code.language, line, formats)
        self.horizontalScrollBar().setValue(0)

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Scroll sideways only; leave the rest to the transcript."""
        if event.angleDelta().x() or event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            super().wheelEvent(event)
        else:
            event.ignore()
