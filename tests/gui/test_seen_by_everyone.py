"""The window for everyone: contrast, small screens and large letters, focus, languages, right to left."""

import json
from functools import partial

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractScrollArea,
    QLabel,
    QToolButton,
    QWidget,
)

from app.gui.theme import tokens

# -- theme


def luminance(colour):
    def part(value):
        value /= 255
        return value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4

    return 0.2126 * part(colour.red()) + 0.7152 * part(colour.green()) + 0.0722 * part(colour.blue())


@pytest.mark.parametrize("dark", [False, True])
def test_high_contrast_reaches_seven_to_one(dark):
    found = tokens(dark=dark, contrast=True)
    for ground in ("background", "surface", "raised"):
        for text in ("text", "muted", "accent", "link", "ok", "warn", "bad"):
            pair = sorted((luminance(found.colour(ground)), luminance(found.colour(text))))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 7, (ground, text)


def test_contrast_changes_live(desktop):
    before = desktop.services.theme.tokens.colours["text"]
    desktop.services.settings.set("window.contrast", "high")
    assert desktop.services.theme.tokens.colours["text"] != before
    desktop.services.settings.set("window.contrast", "normal")
    assert desktop.services.theme.tokens.colours["text"] == before


# -- sizes and languages


def cut_off(page):
    """Words of buttons and one-line labels that do not have the room they need, and what sticks out of the page."""
    found = []
    for made in page.findChildren(QWidget):
        if not made.isVisible() or not isinstance(made, QAbstractButton | QLabel):
            continue
        text = made.text()
        if not text:
            continue
        wraps = isinstance(made, QLabel) and made.wordWrap()
        needed = made.fontMetrics().horizontalAdvance(max(text.split("\n"), key=len))
        if not wraps and made.width() < needed:
            found.append(("cut", type(made).__name__, text, made.width(), needed))
        if isinstance(made, QLabel) and wraps and made.height() < made.heightForWidth(made.width()) - 2:
            found.append(("clipped", type(made).__name__, text, made.height(), made.heightForWidth(made.width())))
        scrolled = made.parentWidget()
        while scrolled is not None and not isinstance(scrolled, QAbstractScrollArea):
            scrolled = scrolled.parentWidget()
        inside = page.rect().translated(0, 0)
        left = made.mapTo(page, QPoint(0, 0)).x()
        if left < 0 or left + made.width() > inside.width() + 1:
            found.append(("outside", type(made).__name__, text, left, made.width()))
    return found


def nothing_is_cut(name, page):
    """Looked at again and again: what was said this very moment has its room once the layout has run."""
    assert cut_off(page) == [], name


@pytest.mark.timeout(400)  # eleven pages, on a crowded computer
@pytest.mark.parametrize("percent", [100, 200])
def test_nothing_is_cut_off_at_900_by_600(qtbot, desktop, percent):
    desktop.services.theme.set("light", percent)
    desktop.window.resize(900, 600)
    for name in desktop.window.page_names:
        desktop.window.show_page(name)
        qtbot.wait(60)
        assert desktop.window.width() == 900, f"{name} does not fit into 900 pixels"
        qtbot.waitUntil(partial(nothing_is_cut, name, desktop.window.page(name)), timeout=20_000)
    desktop.services.theme.set("light", 100)


def test_every_page_has_an_order_of_focus_that_reaches_its_controls(qtbot, desktop):
    for name in desktop.window.page_names:
        desktop.window.show_page(name)
        qtbot.wait(30)
        page = desktop.window.page(name)
        wanted = {
            made
            for made in page.findChildren(QAbstractButton)
            if made.isVisible() and made.isEnabled() and not isinstance(made.parent(), QAbstractScrollArea)
            and not made.objectName().startswith("qt_") and not isinstance(made.parentWidget(), QToolButton)
        }  # fmt: skip
        reached, at = set(), page
        for _ in range(2000):
            at = at.nextInFocusChain()
            if at.focusPolicy() & Qt.FocusPolicy.TabFocus:
                reached.add(at)
            if at is page:
                break
        missed = {made for made in wanted if made not in reached and "ScrollLeft" not in made.objectName()}
        assert [(name, made.accessibleName() or made.text()) for made in missed] == []


@pytest.fixture
def pseudo(qapp):
    from app.gui.application import Catalogue, pseudo

    translator = Catalogue(pseudo, qapp)
    qapp.installTranslator(translator)
    yield
    qapp.removeTranslator(translator)
    translator.deleteLater()


def untranslated(page, known):
    """Texts on the page that did not go through the translation; `known` is what the user or the server wrote."""
    found = []
    for made in page.findChildren(QWidget):
        if not made.isVisible() or not isinstance(made, QLabel | QAbstractButton):
            continue
        text = made.text()
        if any(letter.isalpha() for letter in text) and "[" not in text and not any(k in text for k in known):
            found.append(text)
    return found


def test_every_text_of_every_page_goes_through_the_translation(qtbot, home, pseudo, desktop):
    from app.gui.application import pseudo as translated

    assert translated("{n} tokens") == "[{n} tökéñš~~~~]"
    names = {
        "http", "tessera ", "Spark", str(home), "VS Code", "Ctrl", "Return", "Esc", "F1", "Shift", "pip ", "npm ",
        "Zed", "Aider", "Continue", "Cline", "curl", "openai", "Claude", "Codex", "Tessera", "No route",
        "aider", "OpenCode", "llama", "GiB", "pi", "goose", "Hermes Agent", "OpenClaw",
    }  # fmt: skip
    missed = {}
    for name in desktop.window.page_names:
        desktop.window.show_page(name)
        qtbot.wait(60)
        found = untranslated(desktop.window.page(name), names)
        if found:
            missed[name] = found
    assert missed == {}, json.dumps(missed, indent=1, ensure_ascii=False)


def test_right_to_left_mirrors_the_window(qtbot, qapp, desktop):
    rail = desktop.window._rail
    assert rail.mapTo(desktop.window, QPoint(0, 0)).x() == 0
    qapp.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
    try:
        qtbot.waitUntil(lambda: rail.mapTo(desktop.window, QPoint(0, 0)).x() > desktop.window.width() / 2)
    finally:
        qapp.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
