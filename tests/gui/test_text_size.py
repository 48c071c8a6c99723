"""Enlarging and reducing the text of a running window restores its look; dates and numbers without a locale."""

import pytest
from PySide6.QtCore import QDate, QPoint
from PySide6.QtWidgets import QApplication, QCheckBox, QLabel, QStyle

from app.gui import formatted
from app.gui.application import install_language
from app.gui.chat.composer import Composer
from app.gui.code.files_panel import FileTree
from app.gui.connect.page import ConnectPage
from app.gui.quantize.size_loss_plot import FrontierPlot
from app.gui.server.page import LogPage, ServerPage


def letters(plot):
    """The heights of a chart's texts: axis titles, axis labels, legend."""
    axes = [plot.getPlotItem().getAxis(side) for side in ("left", "bottom")]
    named = [axis.label.boundingRect().height() for axis in axes]
    figures = [axis.style["tickFont"].pixelSize() for axis in axes]
    return [*named, *figures, *(label.item.boundingRect().height() for _, label in plot.legend.items)]


@pytest.mark.parametrize("first", [100, 200])
def test_a_chart_follows_the_size_of_the_text_both_ways(qtbot, theme, first):
    theme.set("light", first)
    plot = FrontierPlot(theme)
    qtbot.addWidget(plot)
    made = letters(plot)
    theme.set("light", 300 - first)
    other = letters(plot)
    small, large = (made, other) if first < 200 else (other, made)
    assert all(one < two for one, two in zip(small, large, strict=True)), (small, large)
    theme.set("light", first)
    assert letters(plot) == made


def test_the_log_of_the_server_follows_the_size_of_the_text_both_ways(show, services, server):
    theme = services.theme
    page = show(ServerPage(services, server.api))
    fields = (show(LogPage(services)).log, page.snippet, page.keys.key)
    before = [field.font().pixelSize() for field in fields]
    theme.set("light", 200)
    assert [field.font().pixelSize() for field in fields] == [2 * size for size in before]
    theme.set("light", 100)
    assert [field.font().pixelSize() for field in fields] == before


def test_the_log_begins_where_other_pages_do_and_shows_whole_lines(show, services, server):
    """Their names stand in one row above them, aligned with the column of a page."""
    log, other = show(LogPage(services)), show(ServerPage(services, server.api))
    starts = []
    for page in (log, other):
        page.resize(1400, 600)
        QApplication.processEvents()
        starts.append(page.title.mapTo(page, QPoint()).x())
    assert starts[0] == starts[1]
    log.log.setPlainText("engine.access id=" + "req" * 400)
    assert log.log.horizontalScrollBar().maximum() == 0


@pytest.mark.parametrize(
    ("language", "date", "number"),
    [
        ("C", "1 May 2026", "32,768"),
        ("en_US", "May 1, 2026", "32,768"),
        ("de_DE", "1. Mai 2026", "32.768"),
        ("ja_JP", "2026年5月1日", "32,768"),
    ],
)
def test_dates_name_the_month_and_numbers_have_groups(qapp, language, date, number):
    translator = install_language(QApplication.instance(), language)
    try:
        assert formatted.day("2026-05-01T10:00:00+00:00") == formatted.date(QDate(2026, 5, 1)) == date
        assert formatted.whole(32768) == number
        assert formatted.day("not a date") == ""
    finally:
        if translator is not None:
            QApplication.removeTranslator(translator)


def test_icons_and_their_controls_follow_the_size_of_the_text_both_ways(qtbot, theme, services, server):
    composer, tree = Composer(theme, services.background), FileTree(theme)
    connect = ConnectPage(services, server.api)
    for widget in (composer, tree, connect):
        qtbot.addWidget(widget)
    glyph = next(made for made in connect.findChildren(QLabel) if made.property("kind") == "glyph")
    box = QCheckBox("Delete the original afterwards")
    qtbot.addWidget(box)
    box.show()
    indicator = QStyle.PixelMetric.PM_IndicatorWidth
    sides = (
        composer._send.width,
        lambda: tree.iconSize().width(),
        glyph.width,
        lambda: box.style().pixelMetric(indicator, None, box) - 2,  # without its frame
    )
    before = [side() for side in sides]
    theme.set("light", 150)
    assert [side() for side in sides] == [1.5 * side for side in before]
    theme.set("light", 100)
    assert [side() for side in sides] == before
