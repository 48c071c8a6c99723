"""The program's own window, with an inspector inside: reports positions and texts of widgets.

Run as `python -m tests.gui.walk.windowed SOCKET`. The walk moves the mouse and types through the X server; queries
here change nothing.
"""

import json
import os
import queue
import socket
import sys
import threading
import traceback
from pathlib import Path

from PySide6.QtCore import QAbstractItemModel, QCoreApplication, QEvent, QObject, QPoint, QRect, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractScrollArea,
    QApplication,
    QComboBox,
    QLabel,
    QMenu,
    QScrollArea,
    QSplitter,
    QTabBar,
    QWidget,
)

from app.gui import application
from app.gui.widgets.basics import Banner

TOAST_MS = 600_000  # a walk checks late on a busy machine
DOUBLE_CLICK_MS = 50  # the test clicks fast, and does not wait until a second click counts as separate


class Eye(QObject):
    """Responds on the main thread."""

    asked = Signal(str, object)

    def __init__(self, path):
        super().__init__()
        self.names = {
            "spot": spot,
            "toast_over": toast_over,
            "says": says,
            "reads": reads,
            "cut": cut,
            "picture": picture,
            "fingerprint": fingerprint,
            "takes_keys": takes_keys,
            "words_of": words_of,
            "fresh": fresh,
            "written": written,
            "windows_opened": windows_opened,
            "ink": ink,
            "Qt": Qt,
            "QPoint": QPoint,
            "QSplitter": QSplitter,
            "app": QApplication,
        }
        self.asked.connect(self.on_asked)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(1)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        peer, _ = self.listener.accept()
        with peer, peer.makefile("rw", encoding="utf-8") as lines:
            for line in lines:
                answer = queue.SimpleQueue()
                self.asked.emit(json.loads(line), answer)
                lines.write(json.dumps(answer.get()) + "\n")
                lines.flush()

    def on_asked(self, code, answer):
        try:
            answer.put([True, eval(code, dict(self.names))])
        except Exception:
            answer.put([False, traceback.format_exc()])


def screen_rect(widget, rect=None):
    """Pixels of the X server: x, y, width, height of its visible part; empty if it is hidden."""
    rect = widget.rect() if rect is None else rect
    seen = rect & widget.visibleRegion().boundingRect()
    if seen.isEmpty() or seen.width() < min(8, rect.width()) or seen.height() < min(8, rect.height()):
        return []
    ratio = widget.devicePixelRatioF()
    top_left = widget.mapToGlobal(seen.topLeft())
    return [round(n * ratio) for n in (top_left.x(), top_left.y(), seen.width(), seen.height())]


def words_of(widget):
    """A widget's text, for the eye and for a screen reader."""
    found = {widget.accessibleName(), widget.toolTip()}
    if hasattr(widget, "text") and callable(widget.text):
        found.add(widget.text())
    if isinstance(widget, QComboBox):
        found.add(widget.currentText())
    if hasattr(widget, "placeholderText"):
        found.add(widget.placeholderText())
    return {str(words).replace("&", "") for words in found if words}


def fresh(widget):
    """Whether it was created after `Walk.mark` marked the old one."""
    return not widget.property("walked")


def roots():
    popup = QApplication.activePopupWidget() or QApplication.activeModalWidget()
    return [popup] if popup else [w for w in QApplication.topLevelWidgets() if w.isVisible()]


def fingerprint():
    """A value that changes with every position and text that is shown."""
    found = []
    for root in roots():
        found += [
            (w.geometry().getRect(), sorted(words_of(w))) for w in root.findChildren(QWidget) if w.isVisible()
        ]
    return hash(str(found))


class Opened(QObject):
    """Records the class of everything that opens as a separate window, except menus, lists and tooltips."""

    def __init__(self):
        super().__init__()
        self.windows = []

    def eventFilter(self, watched, event):
        is_window = event.type() == QEvent.Type.Show and isinstance(watched, QWidget) and watched.isWindow()
        if is_window and watched.windowType() not in {Qt.WindowType.Popup, Qt.WindowType.ToolTip}:
            self.windows.append(type(watched).__name__)
        return False


def windows_opened():
    """The windows opened since the last query; the first query starts recording."""
    if opened.parent() is None:
        opened.setParent(QApplication.instance())
        QApplication.instance().installEventFilter(opened)
    found, opened.windows = opened.windows, []
    return found


def ink(widget):
    """The number of its colours on the screen: a blank widget has one."""
    seen = widget.visibleRegion().boundingRect()
    at = widget.mapToGlobal(seen.topLeft())
    shot = widget.screen().grabWindow(0, at.x(), at.y(), seen.width(), seen.height()).toImage()
    return len({shot.pixel(x, y) for x in range(0, shot.width(), 3) for y in range(0, shot.height(), 3)})


def takes_keys():
    """Whether the keyboard has reached the frontmost window: a new dialog is not active immediately."""
    if QApplication.activePopupWidget() is not None:
        return True
    active, modal = QApplication.activeWindow(), QApplication.activeModalWidget()
    return active is not None and (modal is None or active is modal.window())


def written():
    """Text of the field with the keyboard focus."""
    field = QApplication.focusWidget()
    for read in ("cleanText", "toPlainText", "text"):
        if callable(getattr(field, read, None)):
            return getattr(field, read)()
    return None


def spot(text, within=None, kind=QWidget, nth=0, *, disabled=False):
    """The position of the enabled widget with that text, name or tooltip; also of menu, list and tab entries."""
    found, said = [], []
    for root in [within] if within is not None else roots():
        if isinstance(root, QMenu):
            found += [
                screen_rect(root, root.actionGeometry(action)) for action in root.actions() if offers(action, text)
            ]
        for widget in [root, *root.findChildren(QWidget)]:
            if not widget.isVisible() or not (disabled or widget.isEnabled()):
                continue
            if isinstance(widget, QTabBar):
                found += [
                    screen_rect(widget, widget.tabRect(i))
                    for i in range(widget.count())
                    if widget.tabText(i) == text
                ]
            elif isinstance(widget, QAbstractItemView):
                found += [screen_rect(widget.viewport(), rect) for rect in item_rects(widget, text)]
            elif isinstance(widget, kind) and text in words_of(widget):
                into_sight(widget)
                # The label of a control often has the same text: the control is intended.
                (said if isinstance(widget, QLabel) else found).append(screen_rect(widget))
    found = [rect for rect in [*found, *said] if rect]
    return found[nth] if len(found) > nth else None


def toast_over(x, y, text):
    """The close button of the toast that covers this point of the screen and has another text."""
    for root in roots():
        for toast in root.findChildren(Banner):
            rect = screen_rect(toast) if toast.isVisible() and toast.property("kind").startswith("toast") else []
            if not rect or not QRect(*rect).contains(x, y):
                continue
            if not any(text in words_of(made) for made in toast.findChildren(QAbstractButton)):
                return spot(toast._close.toolTip(), toast)
    return None


def offers(action, text):
    return action.isEnabled() and action.text().replace("&", "").split("\t")[0] == text


def item_rects(view, text):
    model = view.model()
    if not isinstance(model, QAbstractItemModel):
        return []
    found = model.match(
        model.index(0, 0),
        Qt.ItemDataRole.DisplayRole,
        text,
        -1,
        Qt.MatchFlag.MatchStartsWith | Qt.MatchFlag.MatchRecursive,
    )
    return [view.visualRect(index) for index in found]


def into_sight(widget):
    """Scroll to it, like a user."""
    parent = widget.parentWidget()
    while parent is not None:
        if isinstance(parent, QScrollArea):
            parent.ensureWidgetVisible(widget, 8, 8)
        parent = parent.parentWidget()


def says(widget=None):
    """The text of all visible labels and buttons, in one line, with ordinary spaces."""
    out = []
    for root in [widget] if widget is not None else roots():
        for made in root.findChildren(QWidget):
            if isinstance(made, QLabel | QAbstractButton) and made.isVisible() and made.text():
                out.append(made.text())
            elif isinstance(made, QComboBox) and made.isVisible():
                out.append(made.currentText())
    return " | ".join(out).replace("\u00a0", " ")


def reads(widget):
    """All visible text below it: of answers, files and changes."""
    texts = [made for made in widget.findChildren(QWidget) if made.isVisible() and hasattr(made, "toPlainText")]
    return " | ".join(made.toPlainText() for made in texts)


def cut(root=None):
    """Labels and buttons with less space than their text needs: (class, text, needed, actual)."""
    QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)  # the newest message
    found = []
    for top in [root] if root is not None else roots():
        for made in [top, *top.findChildren(QWidget)]:
            if isinstance(made, QLabel | QAbstractButton) and made.isVisible() and made.text():
                need = needed(made)
                got = made.size()
                if need.width() > got.width() + 1 or need.height() > got.height() + 1:
                    found.append([type(made).__name__, made.text(), need.toTuple(), got.toTuple()])
                elif clipped(made):
                    found.append(
                        [type(made).__name__, made.text(), "clipped", made.visibleRegion().boundingRect().getRect()]
                    )
    return found


def needed(made):
    if isinstance(made, QLabel) and made.wordWrap():
        need = made.minimumSizeHint()
        need.setWidth(min(need.width(), made.width()))
        need.setHeight(made.heightForWidth(made.width()))
        return need
    if isinstance(made, QLabel) and getattr(made, "elides", False):
        return made.minimumSizeHint()
    return made.sizeHint() if isinstance(made, QLabel) else made.minimumSizeHint()


def clipped(made):
    """A parent that does not scroll shows only a part of it."""
    rect, parent = made.rect(), made.parentWidget()
    widget = made
    while parent is not None:
        rect = (
            QRect(widget.mapTo(parent, QPoint(0, 0)) + rect.topLeft() - QPoint(0, 0), rect.size())
            if widget is made
            else rect.translated(widget.pos())
        )
        grand = parent.parentWidget()
        if isinstance(grand, QAbstractScrollArea) and grand.viewport() is parent:
            return rect.left() < -1 or rect.right() > parent.width() + 1
        if not parent.rect().adjusted(-1, -1, 1, 1).contains(rect):
            return True
        if parent.isWindow():
            return False
        widget, parent = parent, grand
    return False


def picture(path):
    """The whole screen as the X server shows it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return QGuiApplication.primaryScreen().grabWindow(0).save(path)


class SeenDesktop(application.Desktop):
    """The desktop of the run, for viewing."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        QApplication.setDoubleClickInterval(DOUBLE_CLICK_MS)
        Banner.toast_ms = TOAST_MS
        eye.names.update(desktop=self, window=self.window, chat=self.window.chat)


if __name__ == "__main__":
    os.environ["QT_QPA_PLATFORM"] = "xcb"
    eye, opened = Eye(sys.argv[1]), Opened()
    application.Desktop = SeenDesktop
    sys.exit(application.run(sys.argv[2:]))
