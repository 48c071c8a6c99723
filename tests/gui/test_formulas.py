"""Formulas in answers: drawn by a real child process; whatever cannot be drawn stays text."""

import os
import signal

import pytest

from app.formulas import LONGEST
from app.gui import formulas
from app.gui.markdown.formula_object import OBJECT_LETTER
from app.gui.markdown.view import MarkdownView


@pytest.fixture
def view(qtbot, theme, monkeypatch):
    monkeypatch.setattr(formulas, "_START_MS", 60_000)  # what a crowded computer is slow with is not given up
    monkeypatch.setattr(formulas, "_TIME_MS", 60_000)
    made = MarkdownView(theme)
    qtbot.addWidget(made)
    yield made
    theme.formulas.close()


def drawn(view):
    return view.toPlainText().count(OBJECT_LETTER)


def test_formulas_of_all_four_forms_are_drawn_and_money_and_code_are_not(qtbot, view):
    view.set_markdown(
        "It is $e^{i\\pi}$, costs $5 and $6, and \\(a_1\\).\n\n$$\\frac{1}{2}$$\n\n\\[\n\\sqrt{x}\n\\]\n\n`$code$`"
    )
    assert drawn(view) == 0, "nothing waits for a picture"
    assert "$e^{i\\pi}$" in view.toPlainText()
    qtbot.waitUntil(lambda: drawn(view) == 4)
    assert "costs $5 and $6" in view.toPlainText()
    assert "$code$" in view.toPlainText()


def test_a_formula_stands_on_the_line_and_is_copied_as_it_was_written(qtbot, view):
    view.set_markdown("So $\\frac{a}{b}$ is it.")
    qtbot.waitUntil(lambda: drawn(view) == 1)
    view.fit_width(400)
    assert view.height() > view.fontMetrics().height()
    view.selectAll()
    assert view.createMimeDataFromSelection().text() == "So $\\frac{a}{b}$ is it."


def test_what_streams_in_is_drawn_when_it_is_complete(qtbot, view):
    for piece in ("A root \\(\\sq", "rt{2", "}\\) and", " more\n\nnext"):
        view.append_markdown(piece)
    qtbot.waitUntil(lambda: drawn(view) == 1)
    view.append_markdown(" words")
    assert view.toPlainText().endswith("next words")
    assert drawn(view) == 1


def test_nonsense_and_endless_formulas_stay_text_and_a_dead_child_is_replaced(qtbot, view, theme):
    long = "x" * (LONGEST + 1)
    view.set_markdown(f"$\\frac{{$ and ${long}$ and $y^2$")
    qtbot.waitUntil(lambda: drawn(view) >= 1)
    assert long in view.toPlainText()
    child = theme.formulas._child
    os.kill(child.processId(), signal.SIGKILL)
    view.set_markdown("$z_3$ then $w^4$")
    qtbot.waitUntil(lambda: drawn(view) >= 1)
