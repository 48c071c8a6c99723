"""The devices page: what this computer has, who holds its memory, where each model runs and why."""

from typing import Any
from urllib.parse import quote

from PySide6.QtCore import QTimer
from PySide6.QtGui import QGuiApplication, QHideEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QLabel, QProgressBar, QVBoxLayout

from app.gui.api import ApiError, in_words
from app.gui.devices.facts import KINDS, device_facts, live_facts, pool_shares, summary
from app.gui.devices.placement import placement_card
from app.gui.services import Services
from app.gui.widgets.basics import Banner, LabelKind, Page, button, card, clear, label, row, stack
from app.gui.widgets.memory_bar import MemoryUse

_REFRESH_MS = 2000
_STATES: dict[str, tuple[str, LabelKind]] = {
    "usable": ("Ready", "chip-ok"),
    "present": ("Found, not in use", "chip-warn"),
    "driver_missing": ("Driver missing", "chip-bad"),
    "no_permission": ("No permission", "chip-bad"),
    "failed": ("Does not work", "chip-bad"),
    "unknown": ("Not known", "chip"),
    "no_device": ("No device for it", "chip"),
    "not_built": ("Not installed", "chip"),
}


class DevicesPage(Page):
    """Refreshes its memory bars while it is seen."""

    def __init__(self, services: Services) -> None:
        super().__init__(self.tr("Devices"))
        self._services = services
        self.banner = Banner(services.look)
        again = button(self.tr("Look again"), self.refresh)
        self.header.addWidget(again)
        self._memory_title = label(self.tr("Memory"), "strong")
        self._memory = card(spacing=16)
        self._memory.hide()
        self._memory_title.hide()
        self._uses: dict[str, MemoryUse] = {}
        self._loaded = QVBoxLayout()
        self._devices = QVBoxLayout()
        self._backends = QVBoxLayout()
        for layout in (self._loaded, self._devices, self._backends):
            layout.setSpacing(8)
        self.content.addWidget(self.banner)
        self.content.addLayout(stack(self._memory_title, self._memory, spacing=8))
        for layout in (self._loaded, self._devices, self._backends):
            self.content.addLayout(layout)
        self._timer = QTimer(self)
        self._timer.setInterval(_REFRESH_MS)
        self._timer.timeout.connect(self._refresh_ledger)
        self._asked: set[str] = set()
        self._placements: tuple[str, ...] = ()
        self._live: dict[str, tuple[QLabel, QProgressBar]] = {}
        services.models.reachable_changed.connect(lambda reachable: self.refresh() if reachable else None)

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
        """Ask for the devices and the ledger."""
        self._ask("/tessera/v1/devices", self._show_machine)
        self._refresh_ledger()

    def _refresh_ledger(self) -> None:
        self._ask("/tessera/v1/ledger", self._show_ledger)
        self._ask("/tessera/v1/loaded", self._show_loaded)
        self._ask("/tessera/v1/devices/live", self._show_live)

    def _ask(self, path: str, on_done: Any) -> None:
        if path in self._asked:
            return
        self._asked.add(path)

        def done(answer: Any) -> None:
            self._asked.discard(path)
            on_done(answer)

        def failed(error: Exception) -> None:
            self._asked.discard(path)
            if not (isinstance(error, ApiError) and error.status in {0, 404}):
                self.banner.tell(in_words(error), "warn")

        self._services.background.run(lambda: self._services.api.get(path), done, failed, self)

    def _show_machine(self, answer: dict[str, Any]) -> None:
        machine = answer.get("machine") or answer
        self.set_subtitle(summary(machine))
        clear(self._devices)
        self._live.clear()
        self._devices.addWidget(label(self.tr("Devices"), "strong"))
        for device in machine.get("devices") or ():
            self._devices.addWidget(self._device_card(device))
        clear(self._backends)
        backends = machine.get("backends") or ()
        if backends:
            self._backends.addWidget(label(self.tr("Backends"), "strong"))
            rows = [self._state_rows(backend.get("backend", ""), backend) for backend in backends]
            self._backends.addWidget(card(*rows, spacing=12))
        findings = machine.get("findings") or ()
        if findings:
            self._backends.addWidget(label(self.tr("What would make it better"), "strong"))
            for finding in findings:
                self._backends.addWidget(self._finding_card(finding))

    def _device_card(self, device: dict[str, Any]) -> QFrame:
        kind = self.tr(KINDS.get(device.get("kind", ""), "Device"))
        rows = self._state_rows(device.get("name") or kind, device)
        made = card(label(kind, "small"), rows, spacing=4)
        facts = device_facts(device)
        if facts:
            rows.addWidget(label(facts, "small", wrap=True))
        if device.get("state") in {"usable", "present"}:
            now, bar = label("", "small"), QProgressBar()
            bar.setRange(0, 100)
            bar.setFixedWidth(160)
            bar.setAccessibleName(self.tr("Use of {name}").format(name=device.get("name") or kind))
            bar.hide()
            rows.addLayout(row(bar, now, 1, spacing=12))
            self._live[str(device.get("id"))] = (now, bar)
        return made

    def _show_live(self, answer: dict[str, Any]) -> None:
        for reading in answer.get("devices") or ():
            now, bar = self._live.get(reading.get("device", ""), (None, None))
            if now is None or bar is None:
                continue
            now.setText(live_facts(reading))
            busy = reading.get("busy_frac")
            bar.setVisible(busy is not None)
            bar.setValue(round(100 * (busy or 0)))

    def _state_rows(self, name: str, item: dict[str, Any]) -> QVBoxLayout:
        words, kind = _STATES.get(item.get("state", "unknown"), _STATES["unknown"])
        line = row(label(name), label(self.tr(words), kind), 1)
        column = stack(line, spacing=4)
        if item.get("reason"):
            column.addWidget(label(str(item["reason"]), "small", wrap=True))
        if item.get("fix_hint"):
            column.addLayout(self._fix(str(item["fix_hint"])))
        return column

    def _finding_card(self, finding: dict[str, Any]) -> QFrame:
        column = stack(label(str(finding.get("title", "")), "strong", wrap=True), spacing=4)
        if finding.get("detail"):
            column.addWidget(label(str(finding["detail"]), "small", wrap=True))
        if finding.get("fix"):
            column.addLayout(self._fix(str(finding["fix"])))
        return card(column)

    def _fix(self, text: str) -> Any:
        words = label(text, "", wrap=True, selectable=True)
        words.setFont(self._services.look.font("small", mono=True))
        copy = button(self.tr("Copy"), lambda: QGuiApplication.clipboard().setText(text), "link")
        line = row(words, copy)
        line.setStretch(0, 1)
        return line

    def _show_ledger(self, ledger: dict[str, Any]) -> None:
        pools = ledger.get("pools") or ()
        self._memory.setVisible(bool(pools))
        self._memory_title.setVisible(bool(pools))
        column = self._memory.layout()
        for pool in pools:
            name = pool["id"]
            if name not in self._uses:
                self._uses[name] = MemoryUse(self._services.look, self._pool_name(pool))
                assert column is not None
                column.addWidget(self._uses[name])
            self._uses[name].show_shares(
                pool_shares(pool, ledger.get("reservations") or []), pool.get("capacity_bytes") or 0
            )

    def _pool_name(self, pool: dict[str, Any]) -> str:
        names = {"ram": self.tr("Memory of the computer"), "vram": self.tr("Memory of the graphics card")}
        return names.get(pool.get("kind", ""), self.tr("Memory set aside for the GPU"))

    def _show_loaded(self, answer: dict[str, Any]) -> None:
        loaded = tuple(item["id"] for item in answer.get("models") or () if item.get("state") == "loaded")
        if loaded == self._placements:
            return
        self._placements = loaded
        clear(self._loaded)
        if loaded:
            self._loaded.addWidget(label(self.tr("Where each loaded model runs"), "strong"))
        for model in loaded:
            place = QVBoxLayout()
            self._loaded.addLayout(place)
            path = f"/tessera/v1/models/{quote(model)}/placement"

            def show(answer: dict[str, Any], place: QVBoxLayout = place, model: str = model) -> None:
                clear(place)
                place.addWidget(placement_card(model, answer, self._pin))

            self._ask(path, show)

    def _pin(self, model: str, device: str | None) -> None:
        def pinned(answer: dict[str, Any]) -> None:
            self._placements = ()
            where = device or self.tr("the best place")
            words = self.tr("{name} will run on {where} when it is next loaded.").format(name=model, where=where)
            self.banner.tell(words, "ok")
            load = f"/tessera/v1/models/{quote(model)}/load"
            if answer.get("unloaded"):  # it was idle: bring it back where it was wanted
                self._run(lambda: self._services.api.post(load, {}), lambda _: self._refresh_ledger())

        path = f"/tessera/v1/models/{quote(model)}/pin"
        self._run(lambda: self._services.api.post(path, {"device": device}), pinned)

    def _run(self, work: Any, on_done: Any) -> None:
        self._services.background.run(work, on_done, lambda error: self.banner.tell(in_words(error), "bad"), self)
