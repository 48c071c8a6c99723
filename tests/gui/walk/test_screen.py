"""The screen of the walks: a window manager that dies at its start costs nothing, and no X server stays behind."""

import os
import shutil

import psutil
import pytest

from tests.gui.walk.screen import MANAGERS, Screen


@pytest.fixture
def dying_manager(tmp_path, monkeypatch):
    """Makes the first starts of openbox fail."""

    def dying_manager(times):
        real = shutil.which("openbox")
        first = tmp_path / "openbox"
        count = f"echo x >> {tmp_path}/starts\n[ $(wc -l < {tmp_path}/starts) -gt {times} ] || exit 7"
        first.write_text(f'#!/bin/sh\n{count}\nexec {real} "$@"\n')
        first.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return dying_manager


def servers():
    """X servers that this process started."""
    return [child.pid for child in psutil.Process().children() if child.name() == "Xvfb"]


def test_a_window_manager_that_ends_at_its_start_is_replaced(dying_manager):
    dying_manager(MANAGERS - 1)
    screen = Screen()
    try:
        assert screen.managed()
    finally:
        screen.close()


def test_a_screen_that_cannot_be_made_leaves_no_server(dying_manager):
    before = servers()
    dying_manager(MANAGERS)
    with pytest.raises(AssertionError, match=r"the window manager ended with \[7, 7, 7\]"):
        Screen()
    assert servers() == before
