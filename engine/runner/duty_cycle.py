"""Pauses between steps, so that steps run only their share of the time."""

import queue
import time
from typing import Final, TypeVar

T = TypeVar("T")

# The longest wait without a look at anything else.
SLICE_S: Final = 0.25
# Pauses are not owed without end: after this much the engine continues.
MAX_OWED_S: Final = 10.0


class DutyCycle:
    """`owed_s` grows with every step; whoever waited reports it."""

    def __init__(self) -> None:
        self.duty = 1.0
        self.owed_s = 0.0

    def set(self, duty: float) -> None:
        """Steps may run this share of the time from now on."""
        self.duty = min(1.0, max(0.01, duty))
        if self.duty == 1.0:
            self.owed_s = 0.0

    def stepped(self, seconds: float) -> None:
        """A step ran so long."""
        self.owed_s = min(MAX_OWED_S, self.owed_s + seconds * (1 / self.duty - 1))

    def pause(self, inbox: "queue.SimpleQueue[T]") -> T | None:
        """Pause for some of what is owed, unless a message arrives: then that, at once."""
        if not self.owed_s:
            return None
        begun = time.monotonic()
        try:
            return inbox.get(timeout=min(SLICE_S, self.owed_s))
        except queue.Empty:
            return None
        finally:
            self.waited(time.monotonic() - begun)

    def waited(self, seconds: float) -> None:
        """Nothing ran for so long."""
        self.owed_s = max(0.0, self.owed_s - seconds)
