"""Detects battery operation if the system reports no power supplies."""

import sys

import psutil
import pytest

from devices.battery import is_unplugged


@pytest.mark.skipif(sys.platform != "linux", reason="reads /sys")
def test_a_container_without_power_supplies_is_not_on_battery(monkeypatch, tmp_path):
    monkeypatch.setattr(psutil._pslinux, "POWER_SUPPLY_PATH", str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        psutil.sensors_battery()
    assert is_unplugged() is False
