"""Fields that grow with their text: a scroll bar never flickers, at any width."""

import pytest
from PySide6.QtCore import QEvent, QObject
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QPlainTextEdit, QVBoxLayout, QWidget

from app.gui.chat.composer import Composer
from app.gui.chat.message_editor import MessageEditor
from app.gui.code.page import CodePage

QUESTION = "Change divide in @calc.py so that dividing by zero returns None"
TEXTS = [QUESTION, "emoji 😀 and 漢字 mixed مرحبا words 😀 here and मानक there, twice", f"one\n\n{QUESTION} " * 2]
# iterations of the event loop; a layout that does not settle requests another one in nearly each of them
TURNS = 12
AT_REST = 4


class LayoutRequests(QObject):
    """Counts those that reach a widget."""

    def __init__(self, watched):
        super().__init__(watched)
        self.count = 0
        watched.installEventFilter(self)

    def eventFilter(self, _watched, event):
        self.count += event.type() == QEvent.Type.LayoutRequest
        return False


def turns():
    for _ in range(TURNS):
        QApplication.processEvents()


def scroll_bar(field):
    bar = field.verticalScrollBar()
    return bar.isVisible(), bar.maximum()


@pytest.fixture(params=["composer", "message editor"])
def field(request, qtbot, theme, services):
    """The text field, in a window whose width the test sets."""
    box = QWidget()
    qtbot.addWidget(box)
    if request.param == "composer":
        inner = Composer(theme, services.background)
    else:
        inner = MessageEditor(theme, "", "Edit", "Ask again")
    column = QVBoxLayout(box)
    column.addWidget(inner)
    column.addStretch(1)
    box.show()
    yield inner.findChild(QPlainTextEdit)
    box.close()


@pytest.mark.parametrize("percent", [100, 150])
def test_growing_comes_to_rest_without_a_scroll_bar_at_every_width(field, theme, percent):
    theme.set("light", percent)
    requests = LayoutRequests(field)
    for width in range(190, 480, 11):
        for text in TEXTS:
            field.clear()
            field.window().resize(width, 500)
            turns()
            for piece in (text[:-8], text[-8:]):
                field.insertPlainText(piece)
                requests.count = 0
                turns()
                assert requests.count <= AT_REST, (width, text)
            if field.document().size().height() <= 10:
                assert scroll_bar(field) == (False, 0), (width, text, field.height())


def test_more_lines_than_are_shown_scroll_and_fewer_do_not(field):
    field.window().resize(400, 700)
    field.setPlainText("one\ntwo\nthree")
    turns()
    low = field.height()
    field.setPlainText("line\n" * 40)
    turns()
    visible, maximum = scroll_bar(field)
    assert visible
    assert 40 - 14 < maximum < 40
    high = field.height()
    assert low < high < 500
    field.setPlainText("line\n" * 80)
    turns()
    assert field.height() == high
    field.setPlainText("one\ntwo\nthree")
    turns()
    assert field.height() == low
    assert scroll_bar(field) == (False, 0)


def test_a_question_of_two_lines_leaves_the_code_page_at_rest(qtbot, services, tmp_path):
    page = CodePage(services)
    qtbot.addWidget(page)
    (tmp_path / "calc.py").write_text("def divide(a, b):\n    return a / b\n")
    with qtbot.waitSignal(page.controller.opened):
        page.open_folder(tmp_path)
    page.show()
    editor = page.composer.editor
    requests = LayoutRequests(editor)
    for width in (1000, 1100, 1180, 1260, 1300, 1340, 1400, 1436):
        page.resize(width, 760)
        editor.clear()
        turns()
        QTest.keyClicks(editor, QUESTION)
        requests.count = 0
        turns()
        assert requests.count <= AT_REST, width
        assert editor.document().size().height() >= 2, "the question takes more than a line"
        QTest.keyClicks(editor, " xyz")
        assert page.composer.text == f"{QUESTION} xyz"
    page.controller.close_project()
    page.close()
