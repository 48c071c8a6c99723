"""What appears fades in for a moment, and not at all where the system asks for less motion."""

from PySide6.QtCore import QPropertyAnimation

from app.gui.animations import prefers_reduced_motion
from app.gui.widgets.basics import Banner


def shown(qtbot, theme):
    banner = Banner(theme)
    qtbot.addWidget(banner)
    banner.notify("Something happened.")
    return banner


def test_a_banner_fades_in_for_150_ms_and_then_costs_nothing(qtbot, theme):
    theme.still = False
    banner = shown(qtbot, theme)
    effect = banner.graphicsEffect()
    assert effect.findChild(QPropertyAnimation).duration() == 150
    qtbot.waitUntil(lambda: banner.graphicsEffect() is None)
    assert banner.isVisible()


def test_where_the_system_asks_for_less_motion_it_is_there_at_once(qtbot, theme):
    theme.still = True
    banner = shown(qtbot, theme)
    assert banner.isVisible()
    assert banner.graphicsEffect() is None


def test_without_a_desktop_to_ask_motion_is_wanted(monkeypatch):
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nonexistent")
    assert prefers_reduced_motion() is False
