"""Sentences of power and energy: what cannot be measured or limited, and why."""

from typing import Final

ENERGY: Final = {
    "no_power_meter": "Settings cannot be chosen by energy here: {why} Choosing by speed needs no meter.",
    "no_meter": "no meter tells what the processor draws. Looked for: {places}.",
    "meter_locked": "no meter tells what the processor draws. Looked for: {places}. Found but not readable for this user: {locked}.",
    "meter_locked_until": "no meter tells what the processor draws. Looked for: {places}. Found but not readable for this user: {locked} (until the next start: {command}).",
    "never_at_rest": "Settings cannot be chosen by energy now: what the computer draws at rest is not known, for other programs kept the processors busy for {seconds:.0f} s. End them and start again.",
    "unmetered": "No power meter tells what {device} draws.",
    "nothing_beyond_rest": "The power meters told nothing beyond the computer's rest.",
    "the_processor": "the processor",
    "cap_not_held": "The cap cannot be held: not measured: no meter here. Quiet mode leaves half the cores free instead.",
    "no_battery": "This computer tells of no battery, so nothing bounds what is spent of it.",
}
