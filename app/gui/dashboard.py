"""Dashboard: the server's current activity and its recent history."""

from collections.abc import Iterable
from itertools import pairwise

from PySide6.QtWidgets import QGridLayout, QLabel

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.server import requests
from app.gui.widgets.basics import Page, card, label
from app.gui.widgets.plain_table import PlainTable
from app.gui.widgets.time_plot import HISTORY_S, TimePlot
from engine.api.requests import RecentActivity
from engine.api.stats import Stats, Work

_EVERY_MS = 1000
_SHOWN_REQUESTS = 100
_GIB = 1 << 30


class DashboardPage(Page):
    """Requests new data once per second while visible."""

    def __init__(self, services: AppContext) -> None:
        super().__init__(self.tr("Dashboard"))
        self._services = services
        self._notes: list[QLabel] = []
        self.plots = {
            "speed": TimePlot(services.theme, self.tr("Generated"), self.tr("tokens/s")),
            "prompt": TimePlot(services.theme, self.tr("Read"), self.tr("tokens/s")),
            "active": TimePlot(services.theme, self.tr("Requests running"), ""),
            "waiting": TimePlot(services.theme, self.tr("Requests waiting"), ""),
            "cache": TimePlot(services.theme, self.tr("Prompt found in the cache"), "%"),
            "memory": TimePlot(services.theme, self.tr("Memory of server and models"), "GiB"),
        }
        grid = QGridLayout()
        grid.setSpacing(16)
        for number, plot in enumerate(self.plots.values()):
            grid.addWidget(plot, number // 3, number % 3)
        self.content.addLayout(grid)
        columns = [self.tr("Model"), self.tr("Requests"), self.tr("Tokens read"), self.tr("Tokens generated")]
        self.table = PlainTable(services.theme, self.tr("Use by model"), columns, numbers=3, rows=6)
        self.add_section(self.tr("By model since the server started"), card(self.table, self._nothing()))
        name = self.tr("History of requests, newest first")
        columns, spare = requests.request_columns(), requests.SPARE_COLUMNS
        self.history = PlainTable(services.theme, name, columns, numbers=6, rows=10, wide=2, spare=spare)
        self.add_section(self.tr("History of requests"), card(self.history, self._nothing()))
        self.content.addStretch(1)
        for table in (self.table, self.history):
            table.hide()
        self.while_visible(_EVERY_MS, self.refresh, self.refresh)

    def _nothing(self) -> QLabel:
        """Placeholder text for an empty table."""
        note = label(self.tr("Requests appear here, without their contents."), "muted", wrap=True)
        self._notes.append(note)
        return note

    def refresh(self) -> None:
        """Request the statistics, unless a request is already pending."""
        background, api = self._services.background, self._services.api
        if background.is_loading(self, "activity"):
            return

        def ask() -> tuple[Stats, RecentActivity, tuple[Work, ...]]:
            return api.stats(), api.recent_requests(), api.work_history(HISTORY_S)

        background.run(ask, self._show, lambda _: None, self, newest="activity")

    def _show(self, answers: tuple[Stats, RecentActivity, tuple[Work, ...]]) -> None:
        stats, recent, history = answers
        self.table.setVisible(bool(stats.use))
        self.history.setVisible(bool(recent.requests))
        for note, there in zip(self._notes, (stats.use, recent.requests), strict=True):
            note.setVisible(not there)
        self._fill(history)
        title = self._services.models.title
        self.history.show_rows([requests.request_row(row, title) for row in recent.requests[:_SHOWN_REQUESTS]])
        self.table.show_rows(
            [
                [
                    title(use.model),
                    *map(formatted.whole, (use.requests, use.prompt_tokens, use.generated_tokens)),
                ]
                for use in stats.use
            ]
        )

    def _fill(self, samples: tuple[Work, ...]) -> None:
        """Plot the server's samples. They include the time before the page was opened."""
        if not samples:  # the server has just started
            return
        newest = samples[-1].at

        def draw(name: str, values: Iterable[tuple[Work, float]]) -> None:
            self.plots[name].fill([(newest - sample.at, value) for sample, value in values])

        draw("active", ((s, s.active) for s in samples))
        draw("waiting", ((s, s.waiting) for s in samples))
        draw("memory", ((s, s.rss_bytes / _GIB) for s in samples))
        rates = []
        for before, sample in pairwise(samples):
            took = max(sample.at - before.at, 0.1)
            read = sample.prompt_tokens - before.prompt_tokens
            cached = sample.cached_tokens - before.cached_tokens
            rates.append((sample, (sample.generated_tokens - before.generated_tokens) / took, read, cached, took))
        draw("speed", ((s, generated) for s, generated, *_ in rates))
        draw("prompt", ((s, max(0, read - cached) / took) for s, _, read, cached, took in rates))
        draw("cache", ((s, 100 * cached / read if read else 0.0) for s, _, read, cached, _ in rates))
