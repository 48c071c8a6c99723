"""About Tessera, opened from the settings by a click."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QListWidget, QPlainTextEdit, QPushButton
from pytestqt.qtbot import QtBot

from app.gui.about import About


def test_every_licence_can_be_found_and_read(qtbot: QtBot, desktop):
    window = desktop.window
    window.show_page("settings")
    window.page("settings").show_section("about")
    opener = next(
        b for b in window.page("settings").findChildren(QPushButton) if b.text().startswith("About Tessera")
    )
    qtbot.mouseClick(opener, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: window.findChild(About) is not None)
    about = window.findChild(About)
    parts, text = about.findChild(QListWidget), about.findChild(QPlainTextEdit)
    qtbot.waitUntil(lambda: parts.count() > 50)
    assert "Apache License" in text.toPlainText()
    screen = about.screen().availableGeometry()
    assert about.width() < screen.width(), "with its frame, the dialog fits on a screen of 800 pixels"
    assert about.height() < screen.height()
    about._find.setFocus()
    qtbot.keyClicks(about._find, "lgpl")
    shown = [parts.item(n) for n in range(parts.count()) if not parts.item(n).isHidden()]
    assert shown
    assert all("LGPL" in item.text() for item in shown)
    qtbot.mouseClick(parts.viewport(), Qt.MouseButton.LeftButton, pos=parts.visualItemRect(shown[0]).center())
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in text.toPlainText()
    qtbot.keyClick(about, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: window.findChild(About) is None)
