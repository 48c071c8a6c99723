"""The meter of the used context in the composer."""

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.gui.chat.answer_stats import number
from app.gui.formatted import plain_tip
from app.gui.theme import Theme
from app.gui.widgets.swatch import shape_painter

_BAR, _FULL = 4, 100  # thickness of the bar in pixels; percent


class ContextMeter(QWidget):
    """A bar that shows the used context and the part that the draft would add, below its percentage."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._used = self._draft = self._total = 0
        self._warn_frac = 0.8
        theme.changed.connect(self._fit)
        self._fit()

    def _fit(self) -> None:
        """Fit the size to the text and the bar."""
        self.setFont(self._theme.font("small"))
        metrics = self.fontMetrics()
        widest = metrics.horizontalAdvance(self._words(_FULL))
        self.setFixedSize(max(self._theme.tokens.scaled(72), widest), metrics.height() + _BAR)
        self.update()

    def _words(self, percent: int) -> str:
        return self.tr("Context {n} %").format(n=number(percent))

    def show_counts(self, used: int, draft: int, total: int, warn_frac: float) -> None:
        """Update the bar. All values are tokens, except `warn_frac`, a fraction of `total`."""
        if (used, draft, total, warn_frac) == (self._used, self._draft, self._total, self._warn_frac):
            return  # most keys change no count
        self._used, self._draft, self._total, self._warn_frac = used, draft, total, warn_frac
        self.setVisible(total > 0)
        if total:
            words = self.tr("Context: {used} of {total} tokens used, about {draft} by your draft").format(
                used=number(used), total=number(total), draft=number(draft)
            )
            self.setToolTip(plain_tip(words))
            self.setAccessibleName(words)
        self.update()

    @property
    def level(self) -> str:
        """Fill level including the draft: "ok", "warn" or "bad"."""
        after = self._used + self._draft
        if not self._total or after < self._total * self._warn_frac:
            return "ok"
        return "warn" if after < self._total else "bad"

    def paintEvent(self, event: QPaintEvent) -> None:
        del event
        painter = shape_painter(self)
        tokens = self._theme.tokens
        bar = QRectF(0, self.height() - _BAR, self.width(), _BAR)
        painter.setBrush(tokens.colour("track"))
        painter.drawRoundedRect(bar, _BAR / 2, _BAR / 2)
        if not self._total:
            return
        percent = round(100 * (self._used + self._draft) / self._total)
        painter.setPen(tokens.colour("muted" if self.level == "ok" else "text"))
        painter.drawText(
            self.rect(), Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignHCenter, self._words(percent)
        )
        painter.setPen(Qt.PenStyle.NoPen)
        colour = tokens.colour({"ok": "accent", "warn": "warn", "bad": "bad"}[self.level])
        pale = QColor(colour)
        pale.setAlphaF(0.45)
        for share, brush in ((self._used + self._draft, pale), (self._used, colour)):
            width = self.width() * min(1.0, share / self._total)
            painter.setBrush(brush)
            painter.drawRoundedRect(
                QRectF(0, bar.top(), max(width, _BAR if share else 0), _BAR), _BAR / 2, _BAR / 2
            )
