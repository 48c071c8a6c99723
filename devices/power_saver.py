"""The system's power profiles: lower clocks in quiet mode, higher ones while a model works in fast mode.

Source: power-profiles-daemon. `powerprofilesctl launch` holds a profile while its program lives. Here that program
reads a pipe of this process, so the profile ends with this process, however it ends.
"""

import contextlib
import subprocess
import threading
from collections.abc import Callable

from devices.environment import without_secrets
from devices.programs import installed_program

SAVER, PERFORMANCE = "power-saver", "performance"
_REASONS = {SAVER: "quiet mode", PERFORMANCE: "a model is working"}


class PowerProfile:
    """Holds a profile. Linux with power-profiles-daemon or a replacement; on other systems it is never held."""

    def __init__(self, profile: str, find: Callable[[str], str | None] = installed_program) -> None:
        self._profile, self._find = profile, find
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def held(self) -> bool:
        """Whether the system has the profile for Tessera now."""
        return self._child is not None and self._child.poll() is None

    def hold(self) -> None:
        """Request the profile; a system without the program, or one that refuses, stays unchanged."""
        program, reader = self._find("powerprofilesctl"), self._find("cat")
        if self.held or program is None or reader is None:
            return
        how = ("launch", "--profile", self._profile, "--reason", _REASONS[self._profile], "--appid", "tessera")
        with contextlib.suppress(OSError):
            self._child = subprocess.Popen(
                [program, *how, reader],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=without_secrets(),
            )

    def release(self) -> None:
        """Restore the previous profile."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        with contextlib.suppress(OSError):
            child.stdin.close()
        threading.Thread(target=child.wait, name="power-profile", daemon=True).start()
