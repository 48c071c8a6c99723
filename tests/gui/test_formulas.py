"""Formulas in answers: rendered by a real child process; those that cannot be rendered stay text."""

import os
import signal
import time

import pytest

from app.gui import latex_images
from app.gui.markdown.formula_object import OBJECT_LETTER
from app.gui.markdown.parse import blocks
from app.gui.markdown.view import MarkdownView
from app.latex_child import LONGEST


@pytest.fixture
def view(qtbot, theme, monkeypatch):
    monkeypatch.setattr(latex_images, "_START_MS", 60_000)  # slow work on a busy computer is not given up
    monkeypatch.setattr(latex_images, "_TIME_MS", 60_000)
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


def formulas_of(text):
    """The formulas to render."""
    tokens = [child for block in blocks(text) for token in block.tokens for child in token.children or []]
    return [token.content for token in tokens if token.type == "math"]


@pytest.mark.parametrize(
    "text",
    [
        "export PATH=$HOME/bin:$PATH",
        "export A=${HOME}/bin:${PATH}",
        "cp $HOME/$USER $TMPDIR/$name and $a_b/$c_d",
        "x=$(pwd)/$(date)",
        "kill $$ || echo $$",
        "$BTC/$ETH fell, $AAPL and $MSFT rose",
        "US$/€ and CA$/¥",
        "a $5 bill, a 10$ bill",
        "$5 (or 5$)",
        "from $10K flat to 8K$",
        "$1.50 for a bundle, 2.50$ for two",
        "$5 million or 10$",
        "5$-10$",
        "the '$' sign and the '$' sign",
        "$a->b and $c->d, $i<$n",
        "Ke$ha and A$AP Rocky",
        "$1,000,000 and $2,000,000.",
    ],
)
def test_money_and_variables_of_a_shell_stay_text(text):
    assert formulas_of(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$x$", ["x"]),
        ("the $n$th of $k$, der $n$te, $n$-th", ["n", "k", "n", "n"]),
        ("其中$x$是", ["x"]),
        ("$5$ apples, $2 \\times 3$, $10 mod 3$", ["5", "2 \\times 3", "10 mod 3"]),
        ("$n log n$ and ($x$), **$y$**, $z$.", ["n log n", "x", "y", "z"]),
        ("$5 \\text{ apples}$ and $[0, 1)$", ["5 \\text{ apples}", "[0, 1)"]),
        ("$$x$$ and $$ y $$ and $$ a = b $$", ["x", "y", "a = b"]),
        ("$p=25.6\\$$", ["p=25.6\\$"]),
        ("\\(a\\) \\[b\nc\\]", ["a", "b\nc"]),
    ],
)
def test_formulas_stay_formulas(text, expected):
    assert formulas_of(text) == expected


def least_time(text):
    """CPU time for reading it: the minimum of three."""
    times = []
    for _ in range(3):
        started = time.process_time()
        blocks(text)
        times.append(time.process_time() - started)
    return min(times)


@pytest.mark.parametrize("opening", ["\\(", "\\[", "$$ a", "\\(a\\", "$a", "$\\a"])
def test_openings_without_an_end_take_time_that_grows_with_the_text(opening):
    """Four times the text took sixteen times as long: 40,000 letters 4 s."""
    text = opening * (8000 // len(opening)) + "x"
    assert formulas_of(text) == [] or opening.startswith("$")
    assert least_time(text * 4) < 9 * least_time(text)
