"""Pauses between steps, so that steps run only a given fraction of the time."""

import queue
import time
from typing import Final, TypeVar

T = TypeVar("T")

# Maximum wait before other work is checked.
SLICE_S: Final = 0.25
# Maximum owed pause, so that pauses do not grow without limit.
MAX_OWED_S: Final = 10.0


class DutyCycle:
    """Tracks the owed pause `owed_s`, which grows with every step. Report other waits with `waited`."""

    def __init__(self) -> None:
        self.duty = 1.0
        self.owed_s = 0.0

    def set(self, duty: float) -> None:
        """Let steps run at most this fraction of the time."""
        self.duty = min(1.0, max(0.01, duty))
        if self.duty == 1.0:
            self.owed_s = 0.0

    def stepped(self, seconds: float) -> None:
        """Record the duration of a step."""
        self.owed_s = min(MAX_OWED_S, self.owed_s + seconds * (1 / self.duty - 1))

    def pause(self, inbox: "queue.SimpleQueue[T]") -> T | None:
        """Pause for part of the owed time; return early with a message if one arrives."""
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
        """Subtract an idle time from the owed pause."""
        self.owed_s = max(0.0, self.owed_s - seconds)
