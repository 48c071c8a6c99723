"""Sentences of power and energy: what cannot be measured or limited, and why."""

from typing import Final

ENERGY: Final = {
    "no_power_meter": "Tuning for energy is not possible here: {why} Tuning for speed needs no power meter.",
    "no_meter": "no power meter for the processor. Searched: {places}.",
    "meter_locked": "no power meter for the processor. Searched: {places}. Found but not readable for this user: {locked}.",
    "meter_locked_until": "no power meter for the processor. Searched: {places}. Found but not readable for this user: {locked} (to allow it until the next start: {command}).",
    "never_at_rest": "Tuning for energy is not possible now: other programs kept the processors busy for {seconds:.0f} s, so the idle power of this computer is unknown. Close them and start again.",
    "unmetered": "{device} has no power sensor.",
    "nothing_beyond_rest": "The power meters showed nothing above the idle power of this computer.",
    "the_processor": "the processor",
    "cap_not_held": "The power limit cannot be enforced: there is no power meter here. Quiet mode leaves half the cores free instead.",
    "no_battery": "This computer reports no battery, so there is no battery budget.",
}
