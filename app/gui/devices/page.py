"""The Devices page: devices, memory users, and where each model runs and why."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QProgressBar, QPushButton, QVBoxLayout, QWidget

from app.client import ApiError
from app.format import setting
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.devices.facts import (
    KINDS,
    backend_text,
    device_facts,
    gpu_text,
    live_facts,
    pool_shares,
    summary,
)
from app.gui.devices.power_card import PowerCard
from app.gui.jobs import Jobs
from app.gui.reasons import answer_awaited, error_message, known_text, translated
from app.gui.widgets.basics import Banner, LabelKind, Page, button, card, clear, holding, label, row, stack
from app.gui.widgets.memory_bar import MemoryUse
from devices.first_look import device_name
from engine.api.machine import (
    Alternative,
    BackendReport,
    Device,
    Finding,
    LedgerState,
    LiveDevices,
    Machine,
    Pinned,
    Placement,
    PlacementAnswer,
    Pool,
    PowerState,
)
from engine.api.models import LoadedModel

T = TypeVar("T")

_REFRESH_MS = 2000
_STATES: dict[str, tuple[str, LabelKind]] = {
    "usable": ("Ready", "chip-ok"),
    "present": ("Found, not in use", "chip-warn"),
    "driver_missing": ("Driver missing", "chip-bad"),
    "no_permission": ("No permission", "chip-bad"),
    "failed": ("Does not work", "chip-bad"),
    "unknown": ("Unknown", "chip"),
    "no_device": ("No device found", "chip"),
    "not_built": ("Not installed", "chip"),
}
# States whose reason adds no information to their label.
_TEXT_BY_STATE = {"no_device", "not_built"}


class DevicesPage(Page):
    """Refreshes memory, utilization and power while visible."""

    def __init__(self, services: AppContext, jobs: Jobs) -> None:
        super().__init__(self.tr("Devices"))
        self._services, self._jobs = services, jobs
        self.banner = Banner(services.theme, self)
        again = button(self.tr("Refresh"), self.refresh)
        self.header.addWidget(again, 0, Qt.AlignmentFlag.AlignTop)
        self._memory_title = label(self.tr("Memory in use"), "strong")
        self._awaited = label(answer_awaited(), "muted", wrap=True)
        self._memory = card(self._awaited, spacing=16)
        self._uses: dict[str, MemoryUse] = {}
        self._loaded = QVBoxLayout()
        self._devices = QVBoxLayout()
        self._backends = QVBoxLayout()
        for layout in (self._loaded, self._devices, self._backends):
            layout.setSpacing(8)
        self.content.addLayout(stack(self._memory_title, self._memory, spacing=8))
        for layout in (self._loaded, self._devices, self._backends):
            self.content.addLayout(layout)
        self.power = PowerCard(services, self.banner)
        self._power = holding(stack(label(self.tr("Power"), "strong"), self.power, spacing=8))
        self._power.hide()
        self.content.addWidget(self._power)
        self.while_visible(_REFRESH_MS, self._refresh_ledger, self.refresh)
        self._pending: set[str] = set()
        self._placements: tuple[str, ...] = ()
        self._expanded: set[str] = set()  # models whose settings are shown: loading draws the cards again
        self._round = 0  # incremented when the loaded models change, so that their placements are requested again
        self._live: dict[str, tuple[QLabel, QProgressBar]] = {}
        services.models.reachable_changed.connect(lambda reachable: self.refresh() if reachable else None)
        if services.models.machine is not None:
            self._show_machine(services.models.machine)

    def refresh(self) -> None:
        self._request("devices", self._services.api.devices, self._show_machine)
        self._refresh_ledger()

    def _refresh_ledger(self) -> None:
        api = self._services.api
        self._request("ledger", api.ledger, self._show_ledger)
        self._request("loaded", api.loaded, self._show_loaded)
        self._request("live", api.live_devices, self._show_live)
        changes = self.power.changes
        self._request("power", api.power, lambda state: self._show_power(state, changes))

    def _request(
        self,
        what: str,
        ask: Callable[[], T],
        on_done: Callable[[T], object],
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        """Send a request in the background, unless the same one is pending. The banner shows other errors."""
        if what in self._pending:
            return
        self._pending.add(what)

        def done(answer: T) -> None:
            self._pending.discard(what)
            self.banner.report("", of=what)
            on_done(answer)

        def failed(error: Exception) -> None:
            self._pending.discard(what)
            if on_error is not None:
                on_error(error)
            elif not (isinstance(error, ApiError) and error.status in {0, 404}):
                self.banner.report(error_message(error), of=what, tone="warn")

        self._services.background.run(ask, done, failed, self)

    def _show_machine(self, machine: Machine) -> None:
        self._services.models.machine = machine
        self.set_subtitle(f"{summary(machine)}\n{gpu_text(machine)}")
        clear(self._devices)
        self._live.clear()
        self._devices.addWidget(label(self.tr("Devices"), "strong"))
        for device in machine.devices:
            self._devices.addWidget(self._device_card(device))
        clear(self._backends)
        if machine.backends:
            self._backends.addWidget(label(self.tr("Devices that can run models"), "strong"))
            rows = [self._state_rows(backend_text(backend.backend), backend) for backend in machine.backends]
            self._backends.addWidget(card(*rows, spacing=12))
        if machine.findings:
            self._backends.addWidget(label(self.tr("Possible improvements"), "strong"))
            for finding in machine.findings:
                self._backends.addWidget(self._finding_card(finding))

    def _device_card(self, device: Device) -> QFrame:
        kind = self.tr(KINDS[device.kind])
        rows = self._state_rows(device_name(device) or kind, device)
        device_card = card(label(kind, "small"), rows, spacing=4)
        facts = device_facts(device)
        if facts:
            rows.addWidget(label(facts, "small", wrap=True))
        if device.state in {"usable", "present"}:
            now, bar = label("", "small"), QProgressBar()
            bar.setRange(0, 100)
            bar.setFixedWidth(160)
            bar.setAccessibleName(self.tr("Use of {name}").format(name=device_name(device) or kind))
            bar.hide()
            rows.addLayout(row(bar, now, 1, spacing=12))
            self._live[device.id] = (now, bar)
        return device_card

    def _show_live(self, answer: LiveDevices) -> None:
        for sample in answer.devices:
            now, bar = self._live.get(sample.device, (None, None))
            if now is None or bar is None:
                continue
            now.setText(live_facts(sample))
            bar.setVisible(sample.busy_frac is not None)
            bar.setValue(round(100 * (sample.busy_frac or 0)))

    def _show_power(self, state: PowerState, changes: int) -> None:
        if changes == self.power.changes:  # otherwise the state is older than the last change
            self.power.show_state(state)
        self._power.show()

    def _state_rows(self, name: str, item: Device | BackendReport) -> QVBoxLayout:
        words, kind = _STATES[item.state]
        line = row(label(name), label(self.tr(words), kind), 1)
        column = stack(line, spacing=4)
        if item.reason and item.state not in _TEXT_BY_STATE:
            reason = self._known(item.reason)
            column.addWidget(label(reason[:1].upper() + reason[1:], "small", wrap=True))
        if item.fix_hint:
            column.addLayout(self._fix(item.fix_hint))
        return column

    def _finding_card(self, finding: Finding) -> QFrame:
        column = stack(label(self._known(finding.title), "strong", wrap=True), spacing=4)
        if finding.detail:
            column.addWidget(label(self._known(finding.detail), "small", wrap=True))
        if finding.fix:
            column.addLayout(self._fix(finding.fix))
        return card(column)

    def _known(self, text: str) -> str:
        """A text of the server in the window's language."""
        return formatted.without_ticks(known_text(self.tr(text)))

    def _fix(self, text: str) -> QHBoxLayout:
        text = self._known(text)
        words = label(text, "", wrap=True, selectable=True)
        self._services.theme.dress(words, "small")
        copy = button(self.tr("Copy"), lambda: QGuiApplication.clipboard().setText(text), "link")
        return row(words, copy, grow=0)

    def _show_ledger(self, ledger: LedgerState) -> None:
        self._awaited.hide()
        self._memory.setVisible(bool(ledger.pools))
        self._memory_title.setVisible(bool(ledger.pools))
        column = self._memory.layout()
        for pool in ledger.pools:
            if pool.id not in self._uses:
                self._uses[pool.id] = MemoryUse(self._services.theme, self._pool_name(pool))
                assert column is not None
                column.addWidget(self._uses[pool.id])
            shares = pool_shares(pool, ledger.reservations, self._services.models.title)
            self._uses[pool.id].show_shares(shares, pool.capacity_bytes)

    def _pool_name(self, pool: Pool) -> str:
        names = {"ram": self.tr("Memory of the computer"), "vram": self.tr("Memory of the GPU")}
        return names.get(pool.kind, self.tr("Memory set aside for the GPU"))

    def _show_loaded(self, models: Sequence[LoadedModel]) -> None:
        loaded = tuple(item.id for item in models if item.state == "loaded")
        shown = (*loaded, *self._comparisons())
        if shown == self._placements:
            return
        self._placements = shown
        self._round += 1
        now = self._round
        clear(self._loaded)
        if loaded:
            self._loaded.addWidget(label(self.tr("Where each loaded model runs"), "strong"))
        for model in loaded:
            layout = QVBoxLayout()
            self._loaded.addLayout(layout)

            def show(answer: PlacementAnswer, layout: QVBoxLayout = layout, model: str = model) -> None:
                if now == self._round:  # otherwise this layout was replaced
                    clear(layout)
                    title = self._services.models.title(model)
                    card_ = placement_card(
                        model, title, answer, self._pin, self._stop, self._expanded, eject=self._eject
                    )
                    layout.addWidget(card_)

            def show_error(error: Exception, layout: QVBoxLayout = layout, model: str = model) -> None:
                if now == self._round:
                    clear(layout)
                    head = row(label(self._services.models.title(model), "strong"), 1, _eject(model, self._eject))
                    layout.addWidget(card(head, label(error_message(error), "small", wrap=True), spacing=6))

            ask = partial(self._services.api.placement, model)
            self._request(f"placement {now} of {model}", ask, show, show_error)

    def _comparisons(self) -> tuple[str, ...]:
        """Running jobs that compare the places for a model."""
        jobs = self._jobs.by_id.values()
        return tuple(job.id for job in jobs if job.state == "running" and job.params.get("what") == "compare")

    def _stop(self, job: str) -> None:
        self._jobs.do(job, "cancel")

    def _eject(self, model: str) -> None:
        """Take a model out of memory. Here also one whose file is gone, which no list of models has any more."""

        def ejected(_: object) -> None:
            self._refresh_ledger()
            self._services.models.refresh()

        self._services.ask(self.banner, lambda: self._services.api.unload(model), ejected)

    def _pin(self, model: str, device: str | None) -> None:
        def pinned(answer: Pinned) -> None:
            self._placements = ()
            where = device or self.tr("the best place")
            words = self.tr("{name} will run on {where} when it is next loaded.")
            if answer.applies == "when_idle":
                words = self.tr("{name} is answering. It is loaded on {where} when the last answer ends.")
            self.banner.notify(words.format(name=self._services.models.title(model), where=where), "ok")
            if answer.unloaded:  # it was idle and was unloaded: load it on the chosen device
                self._services.ask(
                    self.banner, lambda: self._services.api.load(model), lambda _: self._refresh_ledger()
                )

        self._services.ask(self.banner, lambda: self._services.api.pin(model, device), pinned)


# The placement card: where a model runs, why, and the alternatives.

Pin = Callable[[str, str | None], object]
Stop = Callable[[str], object]
_DETAILS = frozenset({"own_prompt_kernels", "own_attention_kernels"})  # reasons that few people look for
_ELSEWHERE = "rpc"  # backend of devices on remote hosts


def placement_card(
    model: str,
    title: str,
    answer: PlacementAnswer,
    pin: Pin,
    stop: Stop,
    expanded: set[str] | None = None,
    eject: Callable[[str], object] | None = None,
) -> QFrame:
    """A card of one model's placement.

    `pin` is called with the model and a device, or None to return to automatic placement; `stop` with the job that
    is measuring the model's devices. `expanded` holds the models whose settings are shown, and is changed.
    `eject` is called with the model.
    """
    placement = answer.placement
    head = row(label(title, "strong"), label(_where(placement), "chip"))
    if answer.pinned:
        head.addWidget(label(_tr("Pinned"), "chip-ok"))
    head.addStretch(1)
    head.addWidget(_pin_button(model, answer, pin))
    if eject is not None:
        head.addWidget(_eject(model, eject))
    column = stack(head, spacing=6)
    facts = _facts(placement)
    if facts:
        column.addWidget(label(facts, "small", wrap=True))
    for reason in placement.reasons:
        if reason.kind not in _DETAILS:
            column.addWidget(label(f"• {_sentence(translated(reason))}", "", wrap=True))
    if answer.comparing is not None:
        words = _tr("Measuring which device is fastest. A new request stops it.")
        stops = _button(_tr("Stop measuring"), model, partial(stop, answer.comparing), "link")
        column.addLayout(row(label(words, "small", wrap=True), stops, 1))
    if placement.changes or any(reason.kind in _DETAILS for reason in placement.reasons):
        column.addWidget(_changes(model, placement, set() if expanded is None else expanded))
    if placement.alternatives:
        column.addWidget(label(_tr("Also possible"), "small"))
    for item in placement.alternatives:
        column.addLayout(_alternative(model, item, pin))
    return card(column)


def _pin_button(model: str, answer: PlacementAnswer, pin: Pin) -> QPushButton:
    if answer.pinned:
        return _button(_tr("Let Tessera choose"), model, partial(pin, model, None))
    return _button(_tr("Pin to this device"), model, partial(pin, model, pin_name(answer.placement)))


def pin_name(placement: Placement | Alternative) -> str:
    """The server's name for this device and backend. A remote device has no backend suffix."""
    return placement.device if placement.backend == _ELSEWHERE else f"{placement.device}/{placement.backend}"


def _alternative(model: str, item: Alternative, pin: Pin) -> QHBoxLayout:
    line = _where(item)
    if item.decode_tok_s:
        line += " · " + _tr("about {n} tokens/s").format(n=formatted.whole(item.decode_tok_s))
    reason = translated(item.reason)
    text = label(f"{line}: {reason}" if reason else line, "small", wrap=True)
    shown = row(text, grow=0)
    if item.decode_tok_s:  # without a speed, the model cannot run there
        shown.addWidget(
            _button(_tr("Pin"), f"{model}, {_where(item)}", partial(pin, model, pin_name(item)), "link")
        )
    return shown


def _changes(model: str, placement: Placement, expanded: set[str]) -> QWidget:
    rows = QWidget()
    details = [_sentence(translated(reason)) for reason in placement.reasons if reason.kind in _DETAILS]
    lines = [label(text, "small", wrap=True) for text in details]
    for change in placement.changes:
        reason = translated(change.reason)
        values = f"{change.field}: {setting(change.old)} → {setting(change.new)}"
        lines.append(label(f"{values} ({change.step}: {reason})", "small", wrap=True))
    rows.setLayout(stack(*lines, spacing=2))
    rows.setVisible(model in expanded)

    def toggle() -> None:
        expanded.symmetric_difference_update({model})
        rows.setVisible(model in expanded)

    shows = _button(_tr("Source of each setting"), model, toggle, "link")
    return holding(stack(row(shows, 1), rows, spacing=4))


def _button(text: str, what: str, run: Callable[[], object], kind: str = "") -> QPushButton:
    return button(text, run, kind, name=f"{text}: {what}")


def _eject(model: str, eject: Callable[[str], object]) -> QPushButton:
    return _button(_tr("Eject"), model, partial(eject, model))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _where(placement: Placement | Alternative) -> str:
    backend, device = placement.backend, placement.device
    if backend == device or not device:
        return _tr("CPU") if backend == "cpu" else backend
    return f"{backend} · {device}"


def _facts(placement: Placement) -> str:
    parts: list[str] = []
    settings = placement.settings
    if settings.n_ctx:
        parts.append(_tr("context {n}").format(n=formatted.whole(settings.n_ctx)))
    layers, threads = settings.n_gpu_layers, settings.n_threads
    if layers:
        parts.append(_tr("{n} layers on the GPU").format(n=layers))
    if threads:
        parts.append(formatted.threads(threads))
    if settings.type_k:
        key_type, value_type = settings.type_k.upper(), (settings.type_v or settings.type_k).upper()
        parts.append(_tr("KV cache {k}/{v}").format(k=key_type, v=value_type))
    if placement.decode_tok_s:
        parts.append(_tr("about {n} tokens/s expected").format(n=formatted.whole(placement.decode_tok_s)))
    if placement.tokens_per_joule:
        parts.append(_tr("{n} tokens per joule").format(n=formatted.decimal(placement.tokens_per_joule)))
    elif placement.energy:
        parts.append(translated(placement.energy))
    return " · ".join(parts)


def _tr(text: str) -> str:
    return QCoreApplication.translate("placement", text)
