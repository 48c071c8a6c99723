"""The texts that come with the project: one to fit to, another to judge by."""

from pathlib import Path

_TEXTS = Path(__file__).resolve().parent.parent / "assets" / "text"
CALIBRATION = _TEXTS / "calibration.txt"
HELD_OUT = _TEXTS / "heldout.txt"
