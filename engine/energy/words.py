"""What is said where energy is not measured."""

from typing import Final

NO_METER: Final = "not measured: no meter here"
