"""The German translation: no text is left out, none is stale, fields stay, and the window speaks it."""

import re

import pytest
from PySide6.QtCore import QLocale, QTranslator
from PySide6.QtWidgets import QApplication, QLabel

from app.gui.language import install_language, texts_of
from tests.gui.translatable import every_text

FIELD = re.compile(r"\{\{?\w+\}?\}|%\d")


def test_every_text_has_its_german_one_and_none_is_left_over():
    told = texts_of("de")
    assert sorted(every_text() - told.keys()) == [], "add them to assets/languages/de.json"
    assert sorted(told.keys() - every_text()) == [], "nobody says these any more: take them out"


def test_fields_and_shape_stay():
    wrong = [
        (english, german)
        for english, german in texts_of("de").items()
        if sorted(FIELD.findall(english)) != sorted(FIELD.findall(german))
        or not german.strip()
        or german.endswith("…") != english.endswith("…")
        or german.startswith(" ") != english.startswith(" ")
    ]
    assert wrong == []


@pytest.fixture
def german(qapp):
    before = QLocale()
    translator = install_language(qapp, "de")
    yield translator
    for made in qapp.findChildren(QTranslator):
        qapp.removeTranslator(made)
        made.deleteLater()
    QLocale.setDefault(before)


def test_the_pages_speak_german_and_write_numbers_so(qtbot, german, desktop):
    wanted = {
        "chat": "Wobei kann ich helfen?",
        "library": "Auf diesem Rechner",
        "devices": "Geräte",
        "settings": "Darstellung",
    }
    for name, words in wanted.items():
        desktop.window.show_page(name)
        qtbot.waitUntil(lambda name=name, words=words: words in said(desktop.window.page(name)))
    from app.gui import formatted

    assert formatted.decimal(4.25, 2) == "4,25"
    assert QApplication.translate("QPlatformTheme", "Cancel") == "Abbrechen"


def said(page):
    from PySide6.QtWidgets import QAbstractButton, QTabBar

    found = [made.text() for made in page.findChildren(QLabel) + page.findChildren(QAbstractButton)]
    for bar in page.findChildren(QTabBar):
        found += [bar.tabText(place) for place in range(bar.count())]
    return found
