"""Power limits: mode, limit in watts, and share of the battery."""

from typing import get_args

from PySide6.QtCore import QCoreApplication
from PySide6.QtGui import QDoubleValidator
from PySide6.QtWidgets import QFrame, QLineEdit

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.reasons import translated
from app.gui.widgets.basics import Banner, button, holding, label, line_field, row, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import ComboBox
from engine.api.machine import Mode, PowerLimits, PowerState

_FIELD_WIDTH = 96


class PowerCard(QFrame):
    """Shows the current limits. The button sends changes and is enabled if there are any."""

    def __init__(self, services: AppContext, banner: Banner) -> None:
        super().__init__()
        self._services, self._banner = services, banner
        self._shown: PowerLimits | None = None
        self.changes = 0  # states requested before the latest change are outdated
        self.setProperty("kind", "card")
        self._now = label("", "small", wrap=True)
        self._notes = label("", "small", wrap=True)
        self.mode = ComboBox(self.tr("Mode"))
        self.mode.addItem(self.tr("Server's start options"), None)
        for mode in get_args(Mode):
            self.mode.addItem(_mode_text(mode), mode)
        self.mode.currentIndexChanged.connect(lambda _: self._refresh_button())
        self.cap = self._number(self.tr("Power limit"), 1, 10_000)
        self.battery = self._number(self.tr("Battery budget"), 0.1, 100)
        self.use = button(self.tr("Apply"), self._apply, "primary")
        fields = Flow(spacing=24)
        self._watts = holding(row(label(self.tr("At most")), self.cap, label(self.tr("watts"))))
        self._percent = holding(
            row(label(self.tr("Spend at most")), self.battery, label(self.tr("% of the battery")))
        )
        for part in (holding(row(label(self.tr("Mode")), self.mode)), self._watts, self._percent):
            fields.add(part)
        self.setLayout(
            stack(fields, self._now, self._notes, row(1, self.use), spacing=12, margins=(16, 16, 16, 16))
        )
        self._refresh_button()

    def show_state(self, state: PowerState) -> None:
        """Show the current limits and power. Fields that the user is editing stay unchanged."""
        if state.limits != self._shown:
            self._shown = state.limits
            self.mode.setCurrentIndex(max(self.mode.findData(state.limits.mode), 0))
            for field, value in ((self.cap, state.limits.cap_w), (self.battery, state.limits.battery_percent)):
                field.setText("" if value is None else field.locale().toString(value, "g", 6))
        # A limit that cannot be measured is offered only if it was set by another program.
        self._watts.setVisible(state.measured or state.limits.cap_w is not None)
        has_battery = state.battery_percent is not None or state.limits.battery_percent is not None
        self._percent.setVisible(has_battery)
        self._now.setText(_now(state))
        self._notes.setText("\n".join(map(translated, state.notes)))
        self._notes.setVisible(bool(state.notes))
        self._refresh_button()

    def _number(self, name: str, low: float, high: float) -> QLineEdit:
        field = line_field(self.tr("no limit"), name)
        field.setFixedWidth(_FIELD_WIDTH)
        check = QDoubleValidator(low, high, 1, field)
        check.setNotation(QDoubleValidator.Notation.StandardNotation)
        field.setValidator(check)
        field.textChanged.connect(lambda _: self._refresh_button())
        field.returnPressed.connect(self._apply)
        return field

    def _limits(self) -> PowerLimits | None:
        """The entered limits, or None while a field is incomplete."""
        if any(field.text() and not field.hasAcceptableInput() for field in (self.cap, self.battery)):
            return None
        return PowerLimits(
            mode=self.mode.currentData(), cap_w=_number(self.cap), battery_percent=_number(self.battery)
        )

    def _refresh_button(self) -> None:
        limits = self._limits()
        self.use.setEnabled(self._shown is not None and limits not in (None, self._shown))

    def _apply(self) -> None:
        limits = self._limits()
        if limits is not None and self.use.isEnabled():
            api = self._services.api
            self.changes += 1

            def done(state: PowerState) -> None:
                self.changes += 1
                self.show_state(state)

            self._services.ask(self._banner, lambda: api.set_power(limits), done)


def _number(field: QLineEdit) -> float | None:
    return field.locale().toDouble(field.text())[0] if field.text() else None


def _now(state: PowerState) -> str:
    """One line: current power, and how much work is paused to stay within the limits."""
    watts = "" if state.power_w is None else formatted.whole(state.power_w)
    drawn = _tr("Using {watts} W now.").format(watts=watts) if watts else ""
    if not state.measured:
        drawn = _tr("This computer has no power meter that can be read.")
    saver = _tr("Power saver is on.") if state.saver else ""
    if state.performance:
        saver = _tr("The performance profile is on while a model works.")
    pause = ""
    if state.duty_frac < 1:
        pause = _tr("Paused {percent} % of the time.").format(percent=formatted.whole(100 * (1 - state.duty_frac)))
    battery = ""
    if state.battery_percent is not None:
        battery = _tr("Battery at {percent} %.").format(percent=formatted.whole(state.battery_percent))
    return " ".join(part for part in (drawn, saver, pause, battery) if part)


def _mode_text(mode: Mode) -> str:
    return {"quiet": _tr("Quiet"), "balanced": _tr("Balanced"), "fast": _tr("Fast")}[mode]


def _tr(text: str) -> str:
    return QCoreApplication.translate("power", text)
