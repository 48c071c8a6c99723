"""The dashboard: what the server does right now, as it does it."""

import re
import time
from collections import deque
from typing import Any

import pyqtgraph
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QColor, QHideEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QHeaderView, QTableWidget, QTableWidgetItem

from app.gui import words
from app.gui.services import Services
from app.gui.widgets.basics import Page, card, label, row, stack

_EVERY_MS = 1000
_KEPT = 180  # three minutes
_SAMPLE = re.compile(r"^(tessera_\w+?)(\{[^}]*\})? ([0-9.eE+-]+|NaN)$", re.MULTILINE)
_MODEL = re.compile(r'model="([^"]*)"')


def totals(text: str) -> dict[str, float]:
    """Sums of the counters in Prometheus' text, over all labels."""
    found: dict[str, float] = {}
    for name, _, value in _SAMPLE.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def by_model(text: str, name: str) -> dict[str, float]:
    """One counter by model."""
    found: dict[str, float] = {}
    for sample, labels, value in _SAMPLE.findall(text):
        match = _MODEL.search(labels)
        if sample == name and match:
            found[match.group(1)] = found.get(match.group(1), 0.0) + float(value)
    return found


class Plot(QFrame):
    """One number over the last minutes."""

    def __init__(self, services: Services, title: str, unit: str, series: int) -> None:
        super().__init__()
        self._services, self._series = services, series
        self.setProperty("kind", "card")
        self._unit = unit
        self.value = label("0", "title")
        self._points: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self.plot = pyqtgraph.PlotWidget()
        self.plot.setFixedHeight(120)
        self.plot.setMouseEnabled(x=False, y=False)
        self.plot.setMenuEnabled(False)
        self.plot.hideButtons()
        self.plot.getPlotItem().hideAxis("bottom")
        self.plot.getPlotItem().setContentsMargins(0, 8, 4, 8)
        self.plot.setAccessibleName(title)
        self._curve = self.plot.plot([], [], fillLevel=0)
        head = row(label(title, "small"), 1)
        self.setLayout(stack(head, row(self.value, label(unit, "small"), 1), self.plot, margins=(16, 12, 16, 12)))
        self._recolour()
        services.look.changed.connect(self._recolour)

    def add(self, value: float) -> None:
        """The newest value."""
        self._points.append((time.monotonic(), value))
        self.value.setText(words.decimal(value, 1) if 0 < value < 100 and value % 1 else words.whole(value))  # noqa: PLR2004 - digits
        newest = self._points[-1][0]
        self._curve.setData([t - newest for t, _ in self._points], [v for _, v in self._points])
        top = max(v for _, v in self._points)
        self.plot.setYRange(0, max(top * 1.1, 1), padding=0.02)
        self.plot.setXRange(-_KEPT * _EVERY_MS / 1000, 0, padding=0)

    def _recolour(self) -> None:
        tokens = self._services.look.tokens
        colour = QColor(tokens.series[self._series])
        pale = QColor(colour)
        pale.setAlphaF(0.18)
        self._curve.setPen(pyqtgraph.mkPen(colour, width=2))
        self._curve.setBrush(pale)
        self.plot.setBackground(tokens.colour("raised"))
        axis = self.plot.getPlotItem().getAxis("left")
        axis.setPen(pyqtgraph.mkPen(tokens.colour("border")))
        axis.setTextPen(pyqtgraph.mkPen(tokens.colour("muted")))
        axis.setStyle(tickFont=self._services.look.font("small"))
        axis.setWidth(40)


class DashboardPage(Page):
    """Asks once a second while it is seen."""

    def __init__(self, services: Services) -> None:
        super().__init__(self.tr("Dashboard"))
        self._services = services
        self.plots = {
            "speed": Plot(services, self.tr("Generated"), self.tr("tokens/s"), 0),
            "prompt": Plot(services, self.tr("Read"), self.tr("tokens/s"), 1),
            "active": Plot(services, self.tr("Requests running or waiting"), "", 2),
            "cache": Plot(services, self.tr("Prompt found in the cache"), "%", 3),
        }
        grid = QGridLayout()
        grid.setSpacing(16)
        for number, plot in enumerate(self.plots.values()):
            grid.addWidget(plot, number // 2, number % 2)
        self.content.addLayout(grid)
        self.content.addWidget(label(self.tr("By model since the server started"), "strong"))
        self.table = QTableWidget(0, 4)
        self.table.setHorizontalHeaderLabels(
            [self.tr("Model"), self.tr("Requests"), self.tr("Tokens read"), self.tr("Tokens generated")]
        )
        self.table.verticalHeader().hide()
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.table.horizontalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft)
        self.table.setShowGrid(False)
        self.table.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
        self.table.setMinimumHeight(160)
        self.table.setAccessibleName(self.tr("Use by model"))
        holder = card(self.table)
        self.content.addWidget(holder)
        self._last: tuple[float, dict[str, float]] | None = None
        self._asking = False
        self._timer = QTimer(self)
        self._timer.setInterval(_EVERY_MS)
        self._timer.timeout.connect(self.refresh)

    def showEvent(self, event: QShowEvent) -> None:
        """Look while seen."""
        super().showEvent(event)
        self.refresh()
        self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        """Nothing runs for a page that is not seen."""
        super().hideEvent(event)
        self._timer.stop()

    def refresh(self) -> None:
        """Ask for the counters."""
        if self._asking:
            return
        self._asking = True

        def failed(_: Exception) -> None:
            self._asking = False

        self._services.background.run(lambda: self._services.api.text("/metrics"), self._show, failed, self)

    def _show(self, text: str) -> None:
        self._asking = False
        now, found = time.monotonic(), totals(text)
        if self._last is not None:
            before, old = self._last
            seconds = max(now - before, 0.1)

            def rate(name: str) -> float:
                return max(0.0, found.get(name, 0) - old.get(name, 0)) / seconds

            read, cached = rate("tessera_prompt_tokens_total"), rate("tessera_cached_tokens_total")
            self.plots["speed"].add(rate("tessera_generated_tokens_total"))
            self.plots["prompt"].add(read)
            self.plots["cache"].add(100 * cached / read if read else 0.0)
        self.plots["active"].add(found.get("tessera_requests_active", 0.0))
        self._last = (now, found)
        self._show_models(text)

    def _show_models(self, text: str) -> None:
        generated = by_model(text, "tessera_generated_tokens_total")
        read = by_model(text, "tessera_prompt_tokens_total")
        requests = by_model(text, "tessera_time_to_first_token_seconds_count")
        names = sorted(generated.keys() | read.keys())
        self.table.setRowCount(len(names))
        for line, name in enumerate(names):
            cells: list[Any] = [name] + [words.whole(d.get(name, 0)) for d in (requests, read, generated)]
            for column, cell in enumerate(cells):
                self.table.setItem(line, column, QTableWidgetItem(str(cell)))
