"""Reads the battery: its charge, its full capacity, and the power drawn from it. Does not wake sleeping devices."""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from devices.host import Host, Json, number, read_number, text

SUPPLIES: Final = "/sys/class/power_supply"
MACOS_COMMAND: Final = ("ioreg", "-rw0", "-c", "AppleSmartBattery")
_COMMAND_S: Final = 3.0
_JOULES_PER_WH: Final = 3600.0


class Battery(msgspec.Struct, frozen=True):
    """Totals over all batteries, in joules; `power_w` is the power while they discharge, None if unknown."""

    discharging: bool
    charge_j: float | None = None
    full_j: float | None = None
    power_w: float | None = None

    @property
    def charge_frac(self) -> float | None:
        """Charge level, 0 to 1."""
        if self.charge_j is None or not self.full_j:
            return None
        return min(1.0, self.charge_j / self.full_j)


def is_unplugged() -> bool:
    """Whether this computer runs on its battery now; False if the system does not report it, as in a container."""
    import psutil

    try:
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    except OSError:
        return False
    return battery is not None and battery.power_plugged is False


def read_battery(host: Host) -> Battery | None:
    """The totals of this computer's batteries; None without one. Peripherals' batteries are not counted."""
    if host.system == "linux":
        batteries = [b for name in host.listdir(SUPPLIES) if (b := _linux(host, f"{SUPPLIES}/{name}")) is not None]
        return _together(batteries)
    if host.system == "windows":
        return _windows(host.api("battery_state"))
    if host.system == "macos":
        return _macos(host)
    return None


def _together(batteries: list[Battery]) -> Battery | None:
    if not batteries:
        return None
    return Battery(
        discharging=any(b.discharging for b in batteries),
        charge_j=_sum(b.charge_j for b in batteries),
        full_j=_sum(b.full_j for b in batteries),
        power_w=_sum(b.power_w for b in batteries if b.discharging),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [v for v in values if v is not None]
    return sum(numbers) if numbers else None


def _linux(host: Host, base: str) -> Battery | None:
    # A mouse's battery has the scope "Device".
    if text(host, f"{base}/type") != "Battery" or text(host, f"{base}/scope") == "Device":
        return None
    volts = read_number(host, f"{base}/voltage_now")
    design = read_number(host, f"{base}/voltage_min_design") or volts

    def joules(kind: str) -> float | None:
        """Microwatt hours directly, or microampere hours times the battery's voltage."""
        wh = read_number(host, f"{base}/energy_{kind}")
        if wh is not None:
            return wh / 1e6 * _JOULES_PER_WH
        ah = read_number(host, f"{base}/charge_{kind}")
        return None if ah is None or design is None else ah / 1e6 * design / 1e6 * _JOULES_PER_WH

    microwatts = read_number(host, f"{base}/power_now")
    if microwatts is None and volts is not None:
        amperes = number(text(host, f"{base}/current_now").removeprefix("-"))  # the sign is the direction
        microwatts = None if amperes is None else volts * amperes // 10**6
    discharging = text(host, f"{base}/status") == "Discharging"
    watts = microwatts / 1e6 if microwatts is not None and discharging else None
    return Battery(discharging, joules("now"), joules("full"), watts)


def _windows(state: Json) -> Battery | None:
    """`CallNtPowerInformation`: milliwatt hours, and milliwatts that are negative while it discharges."""
    if not isinstance(state, dict) or not state.get("present"):
        return None
    discharging = bool(state.get("discharging"))
    rate, full, remaining = (state.get(key) for key in ("rate_mw", "full_mwh", "remaining_mwh"))
    return Battery(
        discharging,
        remaining / 1000 * _JOULES_PER_WH if isinstance(remaining, int) and remaining > 0 else None,
        full / 1000 * _JOULES_PER_WH if isinstance(full, int) and full > 0 else None,
        -rate / 1000 if discharging and isinstance(rate, int) and -(1 << 30) < rate < 0 else None,
    )


def _macos(host: Host) -> Battery | None:
    done = host.run(MACOS_COMMAND, _COMMAND_S)
    if done.returncode != 0 or "AppleRawCurrentCapacity" not in done.stdout:
        return None

    def value(key: str) -> int | None:
        match = re.search(rf'"{key}"\s*=\s*([0-9]{{1,20}})', done.stdout, re.ASCII)
        return int(match[1]) if match else None

    volts, amperes = value("Voltage"), value("InstantAmperage")
    remaining, full = value("AppleRawCurrentCapacity"), value("AppleRawMaxCapacity")  # mAh
    if amperes is not None and amperes >= 1 << 63:  # printed as unsigned
        amperes -= 1 << 64
    discharging = amperes is not None and amperes < 0

    def joules(milliampere_hours: int | None) -> float | None:
        if milliampere_hours is None or volts is None:
            return None
        return milliampere_hours / 1000 * volts / 1000 * _JOULES_PER_WH

    watts = -amperes * volts / 1e6 if discharging and amperes is not None and volts is not None else None
    return Battery(discharging, joules(remaining), joules(full), watts)
