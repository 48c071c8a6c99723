"""A share of the battery that work may use: "finish within N %"."""

from dataclasses import dataclass
from typing import Final

from devices.battery import Battery


@dataclass
class BatteryBudget:
    """Energy used from the battery since the first reading, in joules. Charging does not add to the budget."""

    percent: float
    _last_j: float | None = None
    _full_j: float | None = None
    spent_j: float = 0.0
    discharging: bool = False

    def look(self, battery: Battery) -> None:
        """Update the budget with the battery's current state."""
        self.discharging = battery.discharging
        if battery.full_j:
            self._full_j = battery.full_j
        if battery.charge_j is not None:
            if self._last_j is not None and battery.discharging:
                self.spent_j += max(0.0, self._last_j - battery.charge_j)
            self._last_j = battery.charge_j

    @property
    def left_j(self) -> float | None:
        """Joules left in the budget; None until the battery has reported its capacity."""
        return None if self._full_j is None else self.percent / 100 * self._full_j - self.spent_j

    @property
    def spent_percent(self) -> float | None:
        """Energy used, in percent of the full battery."""
        return None if self._full_j is None else 100 * self.spent_j / self._full_j

    def refuses(self, expected_j: float) -> bool:
        """Return whether work of this expected energy exceeds the budget; False on mains power."""
        remaining_j = self.left_j
        return self.discharging and remaining_j is not None and expected_j >= max(remaining_j, 0.0)


# Shown if energy is not measured.

NO_METER: Final = "not measured: no meter here"
