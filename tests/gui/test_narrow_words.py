"""Texts in narrow spaces: facts are omitted whole, names are elided, file names are spelled for screen readers."""

import msgspec
import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QPoint, QSettings, Qt
from PySide6.QtGui import QAccessible, QHelpEvent
from PySide6.QtWidgets import QApplication, QPushButton, QToolTip, QWidget

from app.answer_facts import WebSource
from app.gui.application import install_language
from app.gui.chat.answer_stats import FactsLine
from app.gui.documents.citations import SourcesCard
from app.gui.library.model_card import spoken_name
from app.gui.server.requests import SPARE_COLUMNS, request_columns
from app.gui.widgets.basics import button, label
from app.gui.widgets.elided import ElidedLabel
from app.gui.widgets.flow import Flow
from app.gui.widgets.plain_table import PlainTable
from app.gui.widgets.popups import ComboBox, Menu
from app.gui.widgets.splitter import keep_splitters, restore_splitters, saved_splitter
from tests.gui.wire import SPARK

FACTS = ["6.7 tokens/s", "first after 1.3 s", "100 tokens", "stopped at the length limit"]


def tip(qtbot, widget):
    """The text of the tooltip that the pointer brings up over a widget, empty for none."""
    spot = QPoint(5, 5)
    QCoreApplication.sendEvent(widget, QHelpEvent(QEvent.Type.ToolTip, spot, widget.mapToGlobal(spot)))
    labels = [top for top in QApplication.topLevelWidgets() if top.metaObject().className() == "QTipLabel"]
    texts = [top.text() for top in labels if top.isVisible()]
    assert all(top.textFormat() == Qt.TextFormat.PlainText for top in labels)
    QToolTip.hideText()
    qtbot.waitUntil(lambda: not QToolTip.isVisible())
    return texts[0] if texts else ""


def shown(qtbot, widget, width):
    if not widget.isVisible():
        qtbot.addWidget(widget)
        widget.show()
    widget.resize(width, widget.sizeHint().height())
    qtbot.waitUntil(lambda: widget.width() == width)
    return widget.text()


def test_facts_that_do_not_fit_go_whole_and_the_tip_has_them(qtbot):
    line = FactsLine(FACTS)
    whole = " · ".join(FACTS)
    assert shown(qtbot, line, 900) == whole
    assert line.toolTip() == ""
    height = line.height()
    room = line.fontMetrics().horizontalAdvance(whole) - 1
    assert shown(qtbot, line, room) == "6.7 tokens/s · first after 1.3 s · 100 tokens · …"
    assert line.toolTip() == line.accessibleName() == whole
    assert shown(qtbot, line, 40) == "6.7 tokens/s · …"
    assert line.sizeHint().height() == height, "one line at any width"
    assert shown(qtbot, line, 900) == whole


def test_a_line_that_has_room_does_not_wrap_and_one_that_has_none_does(qtbot):
    flow = Flow()
    name = label("Continue (VS Code, JetBrains)", "strong", wrap=True)
    flow.add(name)
    flow.add(label("Not connected", "chip"))
    qtbot.addWidget(flow)
    flow.resize(600, 60)
    flow.show()
    one_line = name.fontMetrics().height()
    qtbot.waitUntil(lambda: 0 < name.height() < 2 * one_line)
    assert name.width() >= name.fontMetrics().horizontalAdvance(name.text())
    flow.resize(120, 120)
    qtbot.waitUntil(lambda: name.height() >= 2 * one_line and name.width() <= 120)


def test_a_long_name_is_cut_in_its_middle_and_its_tip_is_whole(qtbot, theme):
    name = ElidedLabel("engine/runner/llama/cache/prefix_store.py", "strong")
    qtbot.addWidget(name)
    assert name.minimumSizeHint().width() < 120
    name.show()
    name.resize(120, 24)
    assert name.shown.startswith("engine/")
    assert name.shown.endswith("ore.py")
    assert tip(qtbot, name) == name.text()
    name.resize(900, 24)
    assert tip(qtbot, name) == ""
    name.setToolTip("/home/me/engine")  # its own, which stays
    name.resize(120, 24)
    assert tip(qtbot, name) == "/home/me/engine"


def test_a_long_entry_of_a_combo_box_shows_its_end_and_its_tip_is_whole(qtbot, theme):
    box = ComboBox("Second model")
    words = ("one", "two")
    names = [f"Qwen2.5-Coder-7B-Instruct-{word}-with-a-long-name-Q{bits}_0" for word in words for bits in (4, 8)]
    box.addItems([*names, "Spark"])
    qtbot.addWidget(box)

    def picture(name, width):
        box.setCurrentText(name)
        box.resize(width, 30)
        return box.grab().toImage()

    four, eight, other, _ = (picture(name, 200) for name in names)
    assert four != eight, "the quantization is seen"
    assert four == other, "the middle is left out"
    box.show()
    assert tip(qtbot, box) == box.currentText() == names[-1]
    picture(names[-1], 900)
    assert tip(qtbot, box) == ""
    picture(names[-1], 200)
    picture("Spark", 200)
    assert tip(qtbot, box) == ""


def test_a_tooltip_shows_markup_as_text(qtbot, theme):
    """Names and contents of files come from others: an image in them must not be loaded."""
    name = label("model", tip="<img src='file:///tmp/x.png'><h1>Model</h1>")
    qtbot.addWidget(name)
    name.show()
    assert tip(qtbot, name) == name.toolTip()


def test_pulled_sides_are_kept_in_the_settings(qtbot, tmp_path):
    settings = QSettings(str(tmp_path / "window.ini"), QSettings.Format.IniFormat)

    def page():
        made = saved_splitter("sides", QWidget(), QWidget(), sizes=(300, 700))
        holder = QWidget()
        made.setParent(holder)
        qtbot.addWidget(holder)
        made.resize(1001, 400)
        holder.show()
        return holder, made

    first, split = page()
    assert split.sizes() == [300, 700]
    split.setSizes([450, 550])
    keep_splitters(first, settings)
    second, other = page()
    restore_splitters(second, settings)
    assert other.sizes() == [450, 550]


@pytest.mark.parametrize(
    ("name", "path", "said"),
    [
        ("Qwen2.5-7B-Instruct-Q4_K_M", "/m/Qwen2.5-7B-Instruct-Q4_K_M.gguf", "Qwen2.5-7B-Instruct"),
        ("SmolLM2 135M Instruct", "/m/smollm2-135m-q4_1.gguf", "SmolLM2 135M Instruct"),
        ("mine-Q8_0", "/m/other.gguf", "mine-Q8_0"),
        ("Q4_K_M", "/m/Q4_K_M.gguf", "Q4 K M"),
    ],
)
def test_the_first_line_of_a_model_is_what_a_person_says(name, path, said):
    """A name chosen by the user or by the model's publisher stays unchanged."""
    assert spoken_name(msgspec.structs.replace(SPARK, name=name, path=path)) == said


def test_the_list_of_chats_gives_way_to_a_panel_and_comes_back(qtbot, page):
    page.resize(790, 560)
    qtbot.waitUntil(page.sidebar.isVisible)
    page.bar.tune_pressed.emit()
    assert page.options.isVisible()
    assert not page.sidebar.isVisible()
    page.bar.tools_pressed.emit()
    assert not page.sidebar.isVisible()
    page.bar.tools_pressed.emit()
    assert page.sidebar.isVisible()
    page.bar.fold_pressed.emit()  # the user hides it
    page.bar.tune_pressed.emit()
    page.bar.tune_pressed.emit()
    assert not page.sidebar.isVisible()


@pytest.mark.parametrize("language", ["en", "de"])
def test_a_name_in_a_table_is_whole_and_columns_go_for_it(qtbot, theme, language):
    translator = install_language(QApplication.instance(), language)
    table = PlainTable(theme, "Requests", request_columns(), numbers=6, wide=2, spare=SPARE_COLUMNS)
    qtbot.addWidget(table)
    name = "SmolLM2 135M Instruct"
    cells = ["Tessera", "chat/completions", name, "03:04:08", "157", "0", "181", "1.4 s", "16.1", "12.6 s"]
    hidden = []
    table.resize(1200, 100)
    table.show()
    table.show_rows([cells])
    for width in range(1200, 500, -20):
        table.resize(width, 100)
        item = table.item(0, 2)
        whole = table.fontMetrics().horizontalAdvance(name) <= table.visualItemRect(item).width()
        hidden.append([column for column in SPARE_COLUMNS if table.isColumnHidden(column)])
        assert whole or hidden[-1] == [*SPARE_COLUMNS], width
        assert all(cells[column] in table.item(0, 0).toolTip() for column in hidden[-1])
    assert hidden[0] == []
    assert hidden[-1] == [*SPARE_COLUMNS]
    table.resize(1200, 100)
    assert not any(table.isColumnHidden(column) for column in SPARE_COLUMNS)
    if translator is not None:
        QApplication.removeTranslator(translator)


def test_a_source_that_has_too_little_width_is_cut_at_its_end(qtbot):
    address = "https://tides.example.org/harbour"
    card = SourcesCard([WebSource(title="Tide tables & harbours of the north", url=address)])
    link = card.findChild(QPushButton)
    qtbot.addWidget(card)
    card.resize(card.sizeHint())
    card.show()
    whole = "[1] Tide tables & harbours of the north · tides.example.org"
    assert link.text() == whole.replace("&", "&&")
    card.resize(240, card.height())
    qtbot.waitUntil(lambda: link.text().endswith("…"))
    assert link.text().startswith("[1] Tide tables && ")
    assert link.accessibleName() == whole


def test_an_ampersand_of_a_name_is_shown_in_buttons_and_menus(qtbot, theme):
    holder = button("R&D")
    qtbot.addWidget(holder)
    assert holder.text() == "R&&D", "Qt shows && as &"
    assert Menu(theme, holder).add("folder", "Q & A", lambda: None).text() == "Q && A"
    assert QAccessible.queryAccessibleInterface(holder).text(QAccessible.Text.Name) == "R&D"
