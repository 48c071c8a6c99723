"""A soft shadow below a popup, painted by the window it lies over: no compositor is needed for it."""

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.gui.widgets.swatch import shape_painter

_REACH, _DROP = 18, 6  # pixels around the popup, and how far below it the light puts it
_STRENGTH = 22  # of 255, summed up over the layers


class Shadow(QWidget):
    """Follows `popup` from the moment it is shown until it goes; `dim` darkens the rest of the window too."""

    def __init__(self, popup: QWidget, window: QWidget, radius: int, *, dim: bool = False) -> None:
        super().__init__(window)
        self._popup, self._radius, self._dim = popup, radius, dim
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setAttribute(Qt.WidgetAttribute.WA_NoSystemBackground)
        self.hide()
        popup.installEventFilter(self)
        popup.destroyed.connect(self.deleteLater)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Come, move and go with the popup."""
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
        """Layers of pale rounded frames that add up."""
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
