"""Fade-in animation of new widgets. It is off when the system requests reduced motion."""

import ctypes
import sys

from PySide6.QtCore import QAbstractAnimation, QPropertyAnimation
from PySide6.QtWidgets import QGraphicsOpacityEffect, QWidget

from app.gui.theme import Theme

_SPI_GETCLIENTAREAANIMATION = 0x1042  # winuser.h
_PORTAL_MS = 500


def appear(theme: Theme, widget: QWidget) -> None:
    """Show a small widget. It fades in over the theme's `fast_ms`, unless motion is reduced."""
    widget.show()
    if theme.still:
        return
    effect = QGraphicsOpacityEffect(widget)
    widget.setGraphicsEffect(effect)
    fade = QPropertyAnimation(effect, b"opacity", effect)
    fade.setDuration(theme.tokens.fast_ms)
    fade.setStartValue(0.0)
    fade.setEndValue(1.0)
    # Remove the effect after the fade: a permanent effect makes every repaint slower.
    fade.finished.connect(lambda: widget.setGraphicsEffect(None))  # type: ignore[arg-type]  # None removes it
    fade.start(QAbstractAnimation.DeletionPolicy.KeepWhenStopped)


def prefers_reduced_motion() -> bool:
    """Whether the system requests reduced motion. May block for 0.5 s: do not call on the main thread.

    Windows and macOS: untested. Other systems: reads the desktop's settings over D-Bus; False without a reply.
    """
    if sys.platform == "win32":
        moves = ctypes.c_int(1)
        ctypes.windll.user32.SystemParametersInfoW(_SPI_GETCLIENTAREAANIMATION, 0, ctypes.byref(moves), 0)
        return not moves.value
    if sys.platform == "darwin":
        return _mac_setting()
    return _portal("org.gnome.desktop.interface", "enable-animations") is False or (
        str(_portal("org.kde.kdeglobals.KDE", "AnimationDurationFactor")) in {"0", "0.0"}
    )


def _mac_setting() -> bool:
    core = ctypes.CDLL("/System/Library/Frameworks/CoreFoundation.framework/CoreFoundation")
    make = core.CFStringCreateWithCString
    make.restype = ctypes.c_void_p
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32]
    utf8 = 0x08000100  # kCFStringEncodingUTF8
    read = core.CFPreferencesGetAppBooleanValue
    read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return bool(read(make(None, b"reduceMotion", utf8), make(None, b"com.apple.universalaccess", utf8), None))


def _portal(space: str, key: str) -> object:
    try:
        from PySide6.QtDBus import QDBusConnection, QDBusMessage
    except ImportError:
        return None
    bus = QDBusConnection.sessionBus()
    if not bus.isConnected():
        return None
    place = ("org.freedesktop.portal.Desktop", "/org/freedesktop/portal/desktop", "org.freedesktop.portal.Settings")
    message = QDBusMessage.createMethodCall(*place, "ReadOne")
    message.setArguments([space, key])
    values = bus.call(message, timeout=_PORTAL_MS).arguments()
    if len(values) != 1:  # an error reply has a name and a message
        return None
    value = values[0]
    return value.variant() if hasattr(value, "variant") else value
