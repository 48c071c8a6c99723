"""The dashboard: what the server does right now, as it does it, and what it did."""

import time
from dataclasses import dataclass
from typing import Self

from PySide6.QtCore import QTimer
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QGridLayout

from app.gui import words
from app.gui.server import requests
from app.gui.services import Services
from app.gui.widgets.basics import Page, card
from app.gui.widgets.plain_table import PlainTable
from app.gui.widgets.time_plot import TimePlot
from engine.api.requests import RecentActivity
from engine.api.stats import Stats

_EVERY_MS = 1000
_SHOWN_REQUESTS = 100
_GIB = 1 << 30


class DashboardPage(Page):
    """Asks once a second while it is seen."""

    def __init__(self, services: Services) -> None:
        super().__init__(self.tr("Dashboard"))
        self._services = services
        self.plots = {
            "speed": TimePlot(services.look, self.tr("Generated"), self.tr("tokens/s"), 0),
            "prompt": TimePlot(services.look, self.tr("Read"), self.tr("tokens/s"), 1),
            "active": TimePlot(services.look, self.tr("Requests running"), "", 2),
            "waiting": TimePlot(services.look, self.tr("Requests waiting"), "", 2),
            "cache": TimePlot(services.look, self.tr("Prompt found in the cache"), "%", 3),
            "memory": TimePlot(services.look, self.tr("Memory of server and models"), "GiB", 0),
        }
        grid = QGridLayout()
        grid.setSpacing(16)
        for number, plot in enumerate(self.plots.values()):
            grid.addWidget(plot, number // 3, number % 3)
        self.content.addLayout(grid)
        columns = [self.tr("Model"), self.tr("Requests"), self.tr("Tokens read"), self.tr("Tokens generated")]
        self.table = PlainTable(services.look, self.tr("Use by model"), columns, numbers=3, rows=6)
        self.add_section(self.tr("By model since the server started"), card(self.table))
        name = self.tr("History of requests, newest first")
        self.history = PlainTable(services.look, name, requests.request_columns(), numbers=6, rows=10, wide=2)
        self.add_section(self.tr("History of requests"), card(self.history))
        self.content.addStretch(1)
        self._last: tuple[float, Counts] | None = None
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

        api = self._services.api

        def ask() -> tuple[Stats, RecentActivity]:
            return api.stats(), api.recent_requests()

        self._services.background.run(ask, self._show, failed, self)

    def _show(self, answers: tuple[Stats, RecentActivity]) -> None:
        self._asking = False
        stats, recent = answers
        now, counts = time.monotonic(), Counts.of(stats)
        if self._last is not None:
            before, earlier = self._last
            seconds = max(now - before, 0.1)
            new = counts.since(earlier)
            self.plots["speed"].add(new.generated / seconds)
            self.plots["prompt"].add(new.prompt / seconds)
            self.plots["cache"].add(100 * new.cached / new.prompt if new.prompt else 0.0)
        self._last = (now, counts)
        self.plots["active"].add(stats.active)
        self.plots["waiting"].add(stats.waiting)
        self.plots["memory"].add(stats.rss_bytes / _GIB)
        self.history.show_rows([requests.request_row(row) for row in recent.requests[:_SHOWN_REQUESTS]])
        self.table.show_rows(
            [
                [use.model, *map(words.whole, (use.requests, use.prompt_tokens, use.generated_tokens))]
                for use in stats.use
            ]
        )


@dataclass(frozen=True)
class Counts:
    """Tokens over all models since the server started."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0

    @classmethod
    def of(cls, stats: Stats) -> Self:
        """The sums of an event."""
        return cls(
            sum(use.prompt_tokens for use in stats.use),
            sum(use.cached_tokens for use in stats.use),
            sum(use.generated_tokens for use in stats.use),
        )

    def since(self, earlier: Self) -> Self:
        """What came meanwhile; nothing where a new server began to count."""
        return type(self)(
            max(0, self.prompt - earlier.prompt),
            max(0, self.cached - earlier.cached),
            max(0, self.generated - earlier.generated),
        )
