"""The clock by which the checks of a device stop, replaced where the computer's load must not decide."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from engine.runner.llama import reference_child
from engine.runner.llama.native import device_check, operation_check, scenarios


def replace_clock(monkeypatch: pytest.MonkeyPatch, monotonic: Callable[[], float]) -> None:
    """Let the checks of this process read this clock, in seconds; a constant one lets each run to its end."""
    for module in (reference_child, device_check, operation_check, scenarios):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
