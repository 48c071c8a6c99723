"""Accessibility of the window: contrast, small screens and large text, focus, languages, right to left."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAccessible, QColor, QPalette
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractScrollArea,
    QAbstractSpinBox,
    QComboBox,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QScrollArea,
    QToolButton,
    QWidget,
)

from app.gui.about import About
from app.gui.application import install_language
from app.gui.chat.memory import MemoryDialog
from app.gui.chat.tools_panel import AddServer
from app.gui.code.files_panel import FileTree
from app.gui.library.load_dialog import LoadDialog
from app.gui.navigation import TabList
from app.gui.shortcuts import ShortcutSheet
from app.gui.theme import stylesheet, tokens

# -- theme


def luminance(colour):
    def part(value):
        value /= 255
        return value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4

    return 0.2126 * part(colour.red()) + 0.7152 * part(colour.green()) + 0.0722 * part(colour.blue())


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


GROUNDS = ("background", "surface", "raised", "hover", "accent_soft", "code", "ok_soft", "warn_soft", "bad_soft")
WORDS = ("text", "muted", "accent", "link", "ok", "warn", "bad")


@pytest.mark.parametrize("high", [False, True])
@pytest.mark.parametrize("dark", [False, True])
def test_every_text_reaches_what_wcag_aa_asks_for(dark, high):
    """4.5:1 for text on every possible background, and for each rule of the style sheet; 3:1 for marks."""
    found = tokens(dark=dark, contrast=high)
    colour = found.colour
    low = {(word, ground) for word in WORDS for ground in GROUNDS if contrast(colour(word), colour(ground)) < 4.5}
    low |= {
        (name, ground)
        for name, value in found.syntax.items()
        for ground in ("background", "raised", "code")
        if contrast(QColor(value), colour(ground)) < 4.5
    }
    marks = ("accent", "muted")  # focus, and the frames of check boxes
    fields = ("background", "surface", "raised", "hover")
    low |= {("frame", ground) for ground in fields if contrast(colour("frame"), colour(ground)) < 3}
    low |= {(mark, ground) for mark in marks for ground in GROUNDS if contrast(colour(mark), colour(ground)) < 3}
    if dark:  # tiles of a mosaic, and users of memory
        tiles = [value for _, value in found.precision]
        low |= {tile for tile in tiles if contrast(QColor(tile), colour("raised")) < 3}
    assert low == set()
    names = ("unit", "radius", "small", "body", "title", "dark")
    sheet = stylesheet(found.colours, "", **{name: getattr(found, name) for name in names})
    rules = 0
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", sheet):
        fields = dict(field.strip().split(":", 1) for field in body.split(";") if ":" in field)
        shown = [QColor(fields[name].strip()) for name in ("color", "background") if name in fields]
        if len(shown) == 2 and all(each.isValid() and each.alpha() == 255 for each in shown):
            rules += 1
            assert contrast(*shown) >= 4.5, selector
    assert rules >= 14


def test_hints_in_empty_fields_have_the_contrast_of_other_words(qtbot, theme):
    """A style sheet that sets a field's colour makes its placeholder half transparent, unless it sets that too."""
    for field in (QLineEdit(), QPlainTextEdit()):
        qtbot.addWidget(field)
        field.setPlaceholderText("Ask anything")
        field.show()
        hint = field.palette().color(QPalette.ColorRole.PlaceholderText)
        assert hint.alpha() == 255
        assert contrast(hint, theme.tokens.colour("raised")) >= 4.5


@pytest.mark.parametrize("dark", [False, True])
def test_high_contrast_reaches_seven_to_one(dark):
    found = tokens(dark=dark, contrast=True)
    for ground in ("background", "surface", "raised"):
        for text in ("text", "muted", "accent", "link", "ok", "warn", "bad"):
            assert contrast(found.colour(ground), found.colour(text)) >= 7, (ground, text)


def test_a_chosen_file_is_one_band_without_notches(qtbot, theme):
    tree = FileTree(theme)
    qtbot.addWidget(tree)
    tree.resize(260, 160)
    tree.show_paths(["tests/test_tides.py", "tides.py"], {"tests/test_tides.py": ("●", "has edits to review")})
    tree.show()
    tree.topLevelItem(0).setExpanded(True)
    chosen = tree.topLevelItem(0).child(0)
    tree.setCurrentItem(chosen)
    row = tree.visualItemRect(chosen)
    picture = tree.viewport().grab().toImage()
    edge = {picture.pixelColor(x, row.top() + 1).name() for x in range(picture.width())}
    assert edge == {theme.tokens.colour("accent_soft").name()}


def test_contrast_changes_live(desktop):
    before = desktop.services.theme.tokens.colours["text"]
    desktop.services.settings.set("window.contrast", "high")
    assert desktop.services.theme.tokens.colours["text"] != before
    desktop.services.settings.set("window.contrast", "normal")
    assert desktop.services.theme.tokens.colours["text"] == before


# -- sizes and languages


def too_wide(page):
    """Areas that do not scroll sideways and whose content exceeds their width."""
    found = []
    for area in [page, *page.findChildren(QScrollArea)]:
        if isinstance(area, QScrollArea) and area.isVisible() and area.widget() is not None:
            needed, width = area.widget().minimumSizeHint().width(), area.viewport().width()
            never = area.horizontalScrollBarPolicy() == Qt.ScrollBarPolicy.ScrollBarAlwaysOff
            if never and needed > width:
                found.append(("wider than its page", type(area).__name__, area.accessibleName(), width, needed))
    return found


def cut_off(page):
    """Texts of buttons and one-line labels that lack space, and widgets that extend beyond the page."""
    found = too_wide(page)
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
    """Checked repeatedly: a new message has its space only after the layout has run."""
    assert cut_off(page) == [], name


def panels_and_dialogs(desktop):
    """(name, widget) of popups and side panels that open without a server's response, opened one by one."""
    window = desktop.window
    window.show_page("chat")
    options = window.chat.options
    options.show()
    options.advanced.heading.setChecked(True)
    yield "options", options
    options.hide()
    window.chat.tools.toggle()
    yield "tools", window.chat.tools.panel
    window.chat.tools.hide()
    made = (
        MemoryDialog(desktop.services, window),
        ShortcutSheet(6, window),
        LoadDialog(desktop.services, "spark", "Spark", window),
        AddServer(desktop.services, Path.home(), window),
        About(desktop.services, window),
    )
    for dialog in made:
        dialog.open()
        yield type(dialog).__name__, dialog
        dialog.close()


@pytest.fixture
def german(qapp):
    translator = install_language(qapp, "de")
    yield
    qapp.removeTranslator(translator)


@pytest.mark.timeout(400)  # eleven pages, on a busy computer
@pytest.mark.parametrize(("percent", "language"), [(100, "en"), (150, "de"), (200, "en"), (200, "de")])
def test_nothing_is_cut_off_at_900_by_600(qtbot, request, percent, language):
    if language == "de":
        request.getfixturevalue("german")
    desktop = request.getfixturevalue("desktop")
    desktop.services.theme.set("light", percent)
    desktop.window.resize(900, 600)
    for name in desktop.window.page_names:
        desktop.window.show_page(name)
        qtbot.wait(60)
        assert desktop.window.width() == 900, f"{name} does not fit into 900 pixels"
        qtbot.waitUntil(partial(nothing_is_cut, name, desktop.window.page(name)))
    for name, shown in panels_and_dialogs(desktop):
        qtbot.wait(60)
        qtbot.waitUntil(partial(nothing_is_cut, name, shown))
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


def unnamed(root):
    """Widgets below it that take the focus and have no name for screen readers."""
    found = []
    for made in root.findChildren(QWidget):
        inside = made.parentWidget()
        own = made.focusPolicy() & Qt.FocusPolicy.TabFocus and made.isVisibleTo(root)
        if not own or made.objectName().startswith("qt_") or isinstance(inside, QAbstractSpinBox | QComboBox):
            continue
        seen = QAccessible.queryAccessibleInterface(made)
        if seen is not None and not seen.text(QAccessible.Text.Name).strip():
            found.append(f"{type(made).__name__} in {type(inside).__name__}")
    return found


def test_everything_that_takes_the_focus_has_a_name(qtbot, desktop):
    """On every page and panel, and in every dialog that needs no response of a server."""
    window = desktop.window
    window.resize(1400, 900)
    missed = {}
    for name in window.page_names:
        window.show_page(name)
        qtbot.wait(30)
        missed[name] = unnamed(window.page(name))
    for name, shown in panels_and_dialogs(desktop):
        qtbot.wait(30)
        missed[name] = unnamed(shown)
    missed["window"] = unnamed(window)
    nameless = {name: found for name, found in missed.items() if found}
    assert not nameless, nameless


def test_screen_readers_are_told_of_tabs_and_which_is_chosen(qtbot, desktop):
    window = desktop.window
    window.show_page("library")
    for bar, chosen, count in ((window._rail, "Models", 6), (window._sections, "Library", 2)):
        seen = QAccessible.queryAccessibleInterface(bar if bar is window._rail else bar.findChild(TabList))
        assert seen.role() == QAccessible.Role.PageTabList
        assert seen.text(QAccessible.Text.Name)
        tabs = [seen.child(place) for place in range(seen.childCount())]
        assert [tab.role() for tab in tabs] == [QAccessible.Role.PageTab] * count
        named = {tab.text(QAccessible.Text.Name): tab.state() for tab in tabs}
        assert [name for name, state in named.items() if state.selected] == [chosen]
        assert not any(state.checkable for state in named.values())
        assert [name for name, state in named.items() if not (state.selectable and state.focusable)] == []


@pytest.fixture
def pseudo(qapp):
    from app.gui.application import Catalogue, pseudo

    translator = Catalogue(pseudo, qapp)
    qapp.installTranslator(translator)
    yield
    qapp.removeTranslator(translator)
    translator.deleteLater()


def untranslated(page, known):
    """Texts on the page that were not translated; `known` is what the user or the server wrote."""
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
