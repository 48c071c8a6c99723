"""A memory pool as one bar of its users and its free space, in the app's memory colours."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QEvent, QRectF, QSize
from PySide6.QtGui import QColor, QHelpEvent, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QToolTip, QVBoxLayout, QWidget

from app.gui import formatted
from app.gui.theme import Theme
from app.gui.widgets.basics import label
from app.gui.widgets.flow import Flow
from app.gui.widgets.swatch import Swatch, shape_painter


@dataclass(frozen=True)
class Share:
    """One user of memory. `owner` is a memory colour of the token file, a part of the ledger, or `model N`.

    `parts` are its (name, bytes), drawn in shades of its colour from strong to pale.
    """

    owner: str
    name: str
    num_bytes: int
    parts: tuple[tuple[str, int], ...] = ()

    @property
    def tip(self) -> str:
        lines = [f"{name}: {formatted.size(size)}" for name, size in self.parts]
        return "\n".join([f"{self.name}: {formatted.size(self.num_bytes)}", *lines])


class MemoryBar(QWidget):
    """The bar without total and legend."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._shares: Sequence[Share] = ()
        self._total = 0
        self.setFixedHeight(16)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme.changed.connect(self.update)

    def show_shares(self, shares: Sequence[Share], total: int) -> None:
        """Show the users of `total` bytes."""
        self._shares, self._total = shares, total
        text = ", ".join(f"{share.name} {formatted.size(share.num_bytes)}" for share in shares)
        free = max(0, total - sum(share.num_bytes for share in shares))
        self.setToolTip(
            formatted.plain_tip(self.tr("{text}, free {free}").format(text=text, free=formatted.size(free)))
        )
        self.setAccessibleName(self.toolTip())
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(320, 16)

    def paintEvent(self, event: QPaintEvent) -> None:
        del event
        painter = shape_painter(self)
        frame = QPainterPath()
        frame.addRoundedRect(QRectF(self.rect()), 5, 5)
        painter.setClipPath(frame)
        painter.fillRect(self.rect(), self._theme.tokens.colour("track"))
        left = 0.0
        for share in self._shares:
            colour = owner_colour(self._theme, share.owner)
            parts = [size for _, size in share.parts] or [share.num_bytes]
            for number, size in enumerate(parts):
                width = self.width() * size / self._total if self._total else 0
                colour.setAlphaF(1 - 0.55 * number / len(parts))
                last = number == len(parts) - 1
                painter.fillRect(QRectF(left, 0, max(width - (1 if last else 0), 0.5), self.height()), colour)
                left += width

    def event(self, event: QEvent) -> bool:
        """Show the tooltip of the segment under the pointer."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            left = 0.0
            for share in self._shares:
                left += self.width() * share.num_bytes / self._total if self._total else 0
                if event.pos().x() < left:
                    QToolTip.showText(event.globalPos(), formatted.plain_tip(share.tip), self)
                    return True
        return super().event(event)


class MemoryUse(QWidget):
    """Bar, total and legend."""

    def __init__(self, theme: Theme, name: str) -> None:
        super().__init__()
        self._theme = theme
        self.bar = MemoryBar(theme)
        self._numbers = label("", "small")
        self._legend = Flow(spacing=12)
        head = QHBoxLayout()
        head.addWidget(label(name))
        head.addStretch(1)
        head.addWidget(self._numbers)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(6)
        column.addLayout(head)
        column.addWidget(self.bar)
        column.addWidget(self._legend)
        self._shown: tuple[Share, ...] = ()

    def show_shares(self, shares: Sequence[Share], total: int) -> None:
        """Show the users of `total` bytes."""
        visible = tuple(share for share in shares if share.num_bytes > 0)
        self.bar.show_shares(visible, total)
        free = max(0, total - sum(share.num_bytes for share in visible))
        self._numbers.setText(
            self.tr("{free} free of {total}").format(free=formatted.size(free), total=formatted.size(total))
        )
        if [(s.owner, s.name) for s in visible] != [(s.owner, s.name) for s in self._shown]:
            self._legend.clear()
            for share in visible:
                self._legend.add(_LegendEntry(self._theme, share))
        self._shown = visible


class _LegendEntry(QWidget):
    def __init__(self, theme: Theme, share: Share) -> None:
        super().__init__()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(6)
        layout.addWidget(Swatch(10, 3, partial(owner_colour, theme, share.owner)))
        layout.addWidget(label(f"{share.name} · {formatted.size(share.num_bytes)}", "small"))
        self.setToolTip(formatted.plain_tip(share.tip))


def owner_colour(theme: Theme, owner: str) -> QColor:
    """The colour of a memory user."""
    same = {
        "output": "compute",
        "recurrent": "state",
        "projector": "weights",
        "experts": "weights",
        "correction": "overhead",
    }
    if owner.startswith("model "):
        series = theme.tokens.series
        return QColor(series[int(owner.removeprefix("model ")) % len(series)])
    return QColor(theme.tokens.memory.get(same.get(owner, owner), theme.tokens.memory["compute"]))
