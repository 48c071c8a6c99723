"""The dashboard: what the server does right now, as it does it, and what it did."""

import contextlib
import re
import time
from typing import Any

from PySide6.QtCore import QTimer
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QGridLayout

from app.gui import words
from app.gui.server import requests
from app.gui.services import Services
from app.gui.widgets.basics import Page, card
from app.gui.widgets.plain_table import PlainTable
from app.gui.widgets.time_plot import TimePlot

_EVERY_MS = 1000
_SHOWN_REQUESTS = 100
_GIB = 1 << 30
STATS = "/tessera/v1/stats?once=true"
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
        self.history = PlainTable(services.look, name, requests.request_columns(), numbers=6, rows=10)
        self.add_section(self.tr("History of requests"), card(self.history))
        self.content.addStretch(1)
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

        api = self._services.api

        def ask() -> tuple[str, dict[str, Any], dict[str, Any]]:
            with contextlib.closing(api.stream(STATS)) as stream:
                now: dict[str, Any] = next(iter(stream), {})
            return api.text("/metrics"), now, api.get(requests.PATH)

        self._services.background.run(ask, self._show, failed, self)

    def _show(self, told: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
        self._asking = False
        text, stats, recent = told
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
        self.plots["active"].add(stats.get("active") or 0)
        self.plots["waiting"].add(stats.get("waiting") or 0)
        self.plots["memory"].add((stats.get("rss_bytes") or 0) / _GIB)
        asked = list(recent.get("requests") or ())[:_SHOWN_REQUESTS]
        self.history.show_rows([requests.request_row(row) for row in asked])
        self._last = (now, found)
        self._show_models(text)

    def _show_models(self, text: str) -> None:
        generated = by_model(text, "tessera_generated_tokens_total")
        read = by_model(text, "tessera_prompt_tokens_total")
        requests_ = by_model(text, "tessera_time_to_first_token_seconds_count")
        names = sorted(generated.keys() | read.keys())
        self.table.show_rows(
            [[name] + [words.whole(d.get(name, 0)) for d in (requests_, read, generated)] for name in names]
        )
