"""Menus and combo boxes with rounded corners and icons, file dialogs, and the toast that follows what is shown.

Corners are masked, because not every system supports translucent windows.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QPoint, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QAction, QColor, QCursor, QPainterPath, QPaintEvent, QRegion, QResizeEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QComboBox,
    QFileDialog,
    QFrame,
    QMenu,
    QPlainTextEdit,
    QWidget,
)
from shiboken6 import isValid

from app.gui.reasons import exact
from app.gui.theme import Theme
from app.gui.widgets.basics import Banner, button, label, literal, stack
from app.gui.widgets.elided import ElidedComboBox
from app.gui.widgets.swatch import shape_painter

if TYPE_CHECKING:
    from app.tools.consent import ConsentRequest

_REACH, _DROP = 18, 6  # pixels around the popup, and its downward offset
_STRENGTH = 22  # opacity out of 255, summed over all layers


class Shadow(QWidget):
    """The shadow of `popup` while it is visible. `dim` also darkens the rest of the window."""

    def __init__(self, popup: QWidget, window: QWidget, radius: int, *, dim: bool = False) -> None:
        super().__init__(window)
        self._popup, self._radius, self._dim = popup, radius, dim
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setAttribute(Qt.WidgetAttribute.WA_NoSystemBackground)
        self.hide()
        popup.installEventFilter(self)
        popup.destroyed.connect(self.deleteLater)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Show, move and hide with the popup."""
        if watched is self._popup:
            if event.type() in {QEvent.Type.Show, QEvent.Type.Move, QEvent.Type.Resize}:
                self._follow()
            elif event.type() in {QEvent.Type.Hide, QEvent.Type.Close}:
                self.hide()
        return super().eventFilter(watched, event)

    def _follow(self) -> None:
        window = self.parentWidget()
        if window is None or not self._popup.isVisible():
            return
        corner = window.mapFromGlobal(self._popup.mapToGlobal(QPoint(0, 0)))
        self._at = QRect(corner, self._popup.size())
        around = self._at.adjusted(-_REACH, -_REACH, _REACH, _REACH + _DROP)
        self.setGeometry(window.rect() if self._dim else around & window.rect())
        self.show()
        self.raise_()
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint layers of pale rounded frames that add up."""
        del event
        painter = shape_painter(self)
        if self._dim:
            painter.fillRect(self.rect(), QColor(0, 0, 0, 48))
        at = QRectF(self._at.translated(-self.pos())).translated(0, _DROP)
        steps = _REACH // 2
        for step in range(steps, 0, -1):
            painter.setBrush(QColor(0, 0, 0, max(1, round(_STRENGTH / steps * (1 - step / (steps + 1)) * 2))))
            reach = step * 2 - 1
            painter.drawRoundedRect(
                at.adjusted(-reach, -reach, reach, reach), self._radius + reach, self._radius + reach
            )


_EDGES = QSize(48, 96)  # a window frame, and what a desktop keeps at the edges of the screen
_RADIUS = 8  # corner radius of a combo box list, as in the token file


class Menu(QMenu):
    """A menu with icons that deletes itself when closed."""

    def __init__(self, theme: Theme, parent: QWidget, title: str = "") -> None:
        super().__init__(title, parent)
        self._theme = theme
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        Shadow(self, parent.window(), theme.tokens.radius)

    def add(self, icon: str, words: str, run: Callable[[], object], colour: str = "muted") -> QAction:
        action = self.addAction(self._theme.icon(icon, colour), literal(words))
        action.triggered.connect(lambda _checked=False: run())
        return action

    def below(self, widget: QWidget) -> None:
        self.popup(widget.mapToGlobal(QPoint(0, widget.height() + 4)))
        self.aboutToHide.connect(partial(_leave, widget))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        round_corners(self, self._theme.tokens.radius)


def _leave(widget: QWidget) -> None:
    """Remove a button's hover style: an open menu keeps it from noticing that the pointer left."""
    if isValid(widget) and not widget.rect().contains(widget.mapFromGlobal(QCursor.pos())):
        QCoreApplication.sendEvent(widget, QEvent(QEvent.Type.Leave))
        widget.setAttribute(Qt.WidgetAttribute.WA_UnderMouse, False)
        widget.update()


class ComboBox(ElidedComboBox):
    """A combo box with a rounded list of up to 12 visible entries; `name` is for screen readers."""

    _MOST = 12
    _shadow: Shadow | None = None

    def __init__(self, name: str = "") -> None:
        super().__init__(maxVisibleItems=self._MOST)
        self.setAccessibleName(name)

    def showPopup(self) -> None:
        """Round the corners of the list after it has its size."""
        if self._shadow is None:
            self._shadow = Shadow(self.view().window(), self.window(), _RADIUS)
        super().showPopup()
        round_corners(self.view().window(), _RADIUS)


def largest_dialog(parent: QWidget) -> QSize:
    """The largest size of a dialog on the parent's screen, without its frame and the screen's edges."""
    return parent.screen().availableGeometry().size() - _EDGES


def file_dialog(
    parent: QWidget,
    title: str,
    chosen: Callable[[str], object],
    *,
    folder: bool = False,
    name_filter: str = "",
    start: str = "",
    saves: bool = False,
) -> None:
    """Let the user choose a file or a `folder`; with `saves` a new file, `start` is its proposed path."""
    dialog = QFileDialog(parent, title, start)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    if saves:
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.selectFile(start)
    else:
        dialog.setFileMode(QFileDialog.FileMode.Directory if folder else QFileDialog.FileMode.ExistingFile)
    if name_filter:
        dialog.setNameFilter(name_filter)
        if saves:  # by the dialog, which asks before it replaces a file
            dialog.setDefaultSuffix(Path(start).suffix.removeprefix("."))
    dialog.fileSelected.connect(chosen)
    dialog.open()


def entries_of(box: QComboBox) -> list[tuple[str, Any]]:
    """The text and data of each entry."""
    return [(box.itemText(place), box.itemData(place)) for place in range(box.count())]


def round_corners(window: QWidget, radius: int) -> None:
    """Round the corners of a window."""
    path = QPainterPath()
    path.addRoundedRect(QRectF(window.rect()), radius, radius)
    window.setMask(QRegion(path.toFillPolygon().toPolygon()))


_LINE = 60  # characters that fit into a line of a narrow card


class ConsentCard(QFrame):
    """A consent question. The decline button has the focus, so that a stray Enter allows nothing."""

    decided = Signal(str)
    max_height = 160  # maximum height of the detail text in pixels

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setProperty("kind", "card")
        self.title = label("", "strong", wrap=True)
        self.warning = label("", "chip-warn", wrap=True)
        self.detail = QPlainTextEdit(readOnly=True)
        theme.dress(self.detail, "small")
        self.detail.setAccessibleName(self.tr("Effect of the selected entry"))
        self.decline = button(self.tr("Decline"), lambda: self._decide("no"))
        self.once = button(self.tr("Allow once"), lambda: self._decide("once"), "primary")
        items = (self.title, self.warning, self.detail, self.answers())
        self.setLayout(stack(*items, spacing=8, margins=(12, 12, 12, 12)))
        self.hide()

    def answers(self) -> QBoxLayout:
        """The row of buttons. Must set `decline` and `once`."""
        raise NotImplementedError

    def words(self, request: "ConsentRequest") -> str:
        """The text of the question."""
        return exact(request.title)

    def ask(self, request: "ConsentRequest") -> None:
        words = self.words(request)
        self.title.setText(words)
        self.warning.setText(" ".join(map(exact, request.warnings)))
        self.warning.setVisible(bool(request.warnings))
        self.detail.setPlainText(request.detail)
        lines = self.detail.blockCount() + sum(len(line) // _LINE for line in request.detail.split("\n"))
        needed = lines * self.detail.fontMetrics().lineSpacing() + 2 * self._theme.tokens.unit + 8
        self.detail.setFixedHeight(min(needed, self.max_height))
        self.setAccessibleName(words)
        self.show()
        self.decline.setFocus()

    def _decide(self, decision: str) -> None:
        self.hide()
        self.decided.emit(decision)


class MovingToast(Banner):
    """A toast that floats over one of several widgets, next to that widget's own toast."""

    def __init__(self, theme: Theme, inside: QWidget) -> None:
        """`inside`: holds all of these widgets."""
        super().__init__(theme, inside)
        self._inside = self._shown = inside
        self._own: Banner | None = None

    def follow(self, shown: QWidget, own: Banner | None = None) -> None:
        """Float over `shown`, or where its toast `own` floats and on the inner side of it."""
        self._own = own if own is not None and own.over is not None else None
        self.at_top = self._own is not None and self._own.at_top
        self._shown = shown if self._own is None or self._own.over is None else self._own.over
        self._shown.installEventFilter(self)
        if self._own is not None:
            self._own.installEventFilter(self)
        self._place()

    def area(self) -> QRect:
        """The shown widget, without its own toast."""
        within = self._shown.rect() if self._own is None else self._own.area()
        if self._own is not None and self._own.isVisible():
            height = self._own.height() + self._theme.tokens.unit
            within.adjust(0, height if self.at_top else 0, 0, 0 if self.at_top else -height)
        return within.translated(self._shown.mapTo(self._inside, QPoint(0, 0)))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Make room for the other toast."""
        if watched is self._own and event.type() in {QEvent.Type.Show, QEvent.Type.Hide} and not self.isHidden():
            self._place()
        return super().eventFilter(watched, event)
