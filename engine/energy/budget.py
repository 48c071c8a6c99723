"""A part of the battery that work may spend: "finish within N %"."""

from dataclasses import dataclass
from typing import Final

from devices.battery import Battery


@dataclass
class BatteryBudget:
    """Joules of the full battery, counted from the first look on. What mains give meanwhile is not given back."""

    percent: float
    _last_j: float | None = None
    _full_j: float | None = None
    spent_j: float = 0.0
    discharging: bool = False

    def look(self, battery: Battery) -> None:
        """The battery now."""
        self.discharging = battery.discharging
        if battery.full_j:
            self._full_j = battery.full_j
        if battery.charge_j is not None:
            if self._last_j is not None and battery.discharging:
                self.spent_j += max(0.0, self._last_j - battery.charge_j)
            self._last_j = battery.charge_j

    @property
    def left_j(self) -> float | None:
        """Joules that may still be spent; None before the battery told its size."""
        return None if self._full_j is None else self.percent / 100 * self._full_j - self.spent_j

    @property
    def spent_percent(self) -> float | None:
        """Of the full battery."""
        return None if self._full_j is None else 100 * self.spent_j / self._full_j

    def refuses(self, expected_j: float) -> bool:
        """Work that is expected to draw so much does not fit any more. On mains everything does."""
        left = self.left_j
        return self.discharging and left is not None and expected_j >= max(left, 0.0)


# What is said where energy is not measured.

NO_METER: Final = "not measured: no meter here"
