"""New content fades in, unless the system prefers less motion; toasts do not move other content."""

import pytest
from PySide6.QtCore import QPoint, QPropertyAnimation, QRect, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QPushButton, QWidget

from app.gui import job_card
from app.gui.animations import prefers_reduced_motion
from app.gui.job_card import JobList
from app.gui.settings_page import SettingsPage
from app.gui.widgets.basics import Banner, stack
from tests.gui.hands import settled
from tests.gui.wire import pulling


def shown(qtbot, theme):
    banner = Banner(theme)
    qtbot.addWidget(banner)
    banner.notify("Something happened.")
    return banner


def test_a_banner_fades_in_for_150_ms_and_then_costs_nothing(qtbot, theme):
    theme.still = False
    banner = shown(qtbot, theme)
    effect = banner.graphicsEffect()
    assert effect.findChild(QPropertyAnimation).duration() == 150
    qtbot.waitUntil(lambda: banner.graphicsEffect() is None)
    assert banner.isVisible()


def test_where_the_system_asks_for_less_motion_it_is_there_at_once(qtbot, theme):
    theme.still = True
    banner = shown(qtbot, theme)
    assert banner.isVisible()
    assert banner.graphicsEffect() is None


def test_without_a_desktop_to_ask_motion_is_wanted(monkeypatch):
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nonexistent")
    assert prefers_reduced_motion() is False


LONG = "The folder /srv/models/of/everybody cannot be written to. Choose another one or change its owner. " * 3


def places(page, toast):
    """The positions of everything else on the page."""
    others = [made for made in page.findChildren(QWidget) if made is not toast and not toast.isAncestorOf(made)]
    return {made: made.mapTo(page, QPoint(0, 0)).toTuple() for made in others if made.isVisible()}


def resting(qtbot, services, page):
    """The positions of all widgets, after the page's data has loaded and been laid out."""
    settled(qtbot, services)
    looks = []

    def is_same():
        looks.append(places(page, page.banner))
        return looks[-5:] == [looks[-1]] * 5

    qtbot.waitUntil(is_same)
    return looks[-1]


@pytest.mark.parametrize("width", [500, 1000])
def test_a_toast_moves_nothing_and_is_whole_at_every_width(qtbot, services, page, width):
    """Of the pages with a floating message: one that scrolls, and the chat."""
    settings = SettingsPage(services, 6)
    qtbot.addWidget(settings)
    settings.show()
    for shown in (settings, page):
        shown.resize(width, 500)
        before = resting(qtbot, services, shown)
        assert len(before) > 20
        shown.banner.notify(LONG, "bad", ("Try again", lambda: None))
        qtbot.wait(50)
        assert places(shown, shown.banner) == before
        around = shown.banner.parentWidget()
        assert around.rect().contains(shown.banner.geometry())
        words = shown.banner._text
        assert words.height() >= words.heightForWidth(words.width())
        assert all(made.width() >= made.sizeHint().width() for made in shown.banner.findChildren(QPushButton))
        shown.resize(width + 200, 520)
        qtbot.waitUntil(
            lambda b=shown.banner, a=around: abs(b.geometry().center().x() - a.rect().center().x()) <= 1
        )


def on_screen(toast):
    return QRect(toast.mapToGlobal(QPoint(0, 0)), toast.size())


@pytest.mark.parametrize("name", ["chat", "code", "settings", "library"])
def test_a_message_of_the_window_moves_nothing_and_leaves_that_of_the_page_to_be_read(qtbot, desktop, name):
    window = desktop.window
    window.show_page(name)
    page = window.page(name)
    before = resting(qtbot, desktop.services, page)
    page.banner.notify("Saved.", "warn", ("Undo", lambda: None))
    window.banner.notify(LONG, "bad", ("Try again", lambda: None))
    qtbot.waitUntil(lambda: not on_screen(window.banner).intersects(on_screen(page.banner)))
    assert places(page, page.banner) == before
    assert window.rect().contains(window.banner.geometry().translated(window.banner.over.pos()))
    above = on_screen(window.banner)
    page.banner.hide()
    qtbot.waitUntil(lambda: on_screen(window.banner) != above)  # it takes the free place
    page.banner.notify(LONG, "bad")
    qtbot.waitUntil(lambda: not on_screen(window.banner).intersects(on_screen(page.banner)))
    assert places(page, page.banner) == before
    window.show_page("devices")
    assert window.banner.isVisible(), "it is not a message of that page"


def test_a_message_of_the_code_page_leaves_its_question_free(qtbot, desktop, tmp_path):
    """With a project it floats over the files, without one over the page."""
    (tmp_path / "tides.py").write_text("print(1)\n")
    window, code = desktop.window, desktop.window.page("code")
    window.show_page("code")
    code.banner.notify("No such folder.", "warn")
    assert code.pages.rect().contains(code.banner.geometry().translated(-code.pages.pos()))
    code.open_folder(tmp_path)
    qtbot.waitUntil(lambda: code.pages.currentIndex() == 1)
    before = resting(qtbot, desktop.services, code)
    code.banner.notify(LONG, "warn", ("Undo", lambda: None))
    assert places(code, code.banner) == before
    assert on_screen(code.tabs).contains(on_screen(code.banner))


def test_a_job_that_ends_leaves_its_place_until_the_pointer_rests(qtbot, theme, jobs, monkeypatch):
    """Otherwise the hand that is about to pause one job would cancel another."""
    monkeypatch.setattr(job_card, "_STILL_MS", 200)
    page = QWidget()
    qtbot.addWidget(page)
    below = QPushButton("Chat")
    listed = JobList(theme, jobs)
    page.setLayout(stack(listed, below, 1))
    page.resize(600, 400)
    page.show()
    for name in ("one", "two"):
        jobs.started(pulling(id=name))
    qtbot.waitUntil(lambda: below.y() > 100)
    lower = listed.findChildren(job_card.JobCard)[0]
    before = lower.y(), below.y()
    QTest.mouseMove(page, QPoint(20, 20))
    qtbot.waitUntil(page.underMouse)
    jobs.started(pulling("done", id="two"))
    qtbot.waitUntil(lambda: len([card for card in listed.findChildren(job_card.JobCard) if card.isVisible()]) == 1)
    assert (lower.y(), below.y()) == before
    qtbot.waitUntil(lambda: (lower.y(), below.y()) < before)  # the pointer rests
    jobs.started(pulling("cancelled", id="one"))
    qtbot.waitUntil(listed.isHidden)


@pytest.mark.parametrize(
    ("tone", "actions", "goes"),
    [("ok", (), True), ("info", (), True), ("bad", (), False), ("warn", (), False), ("ok", ("Undo",), False)],
)
def test_a_toast_without_a_problem_or_a_button_goes_by_itself(qtbot, theme, monkeypatch, tone, actions, goes):
    monkeypatch.setattr(Banner, "toast_ms", 30)
    around = QWidget()
    qtbot.addWidget(around)
    around.resize(600, 400)
    toast, bar = Banner(theme, around), Banner(theme)
    around.setLayout(stack(bar, 1))
    around.show()
    qtbot.waitUntil(around.isActiveWindow)
    for each in (toast, bar):
        each.notify("Saved.", tone, *((name, lambda: None) for name in actions))
        assert each.isVisible()
    if goes:
        qtbot.waitUntil(lambda: not toast.isVisible())
    else:
        assert not toast._timer.isActive()
        assert toast.isVisible()
    assert bar.isVisible()
    assert not bar._timer.isActive()


def test_a_toast_stays_while_it_is_used(qtbot, theme, monkeypatch):
    monkeypatch.setattr(Banner, "toast_ms", 30)
    around = QWidget()
    qtbot.addWidget(around)
    around.resize(600, 400)
    toast = Banner(theme, around)
    around.show()
    qtbot.waitUntil(around.isActiveWindow)
    toast.notify("Saved.", "ok")
    toast._close.setFocus(Qt.FocusReason.TabFocusReason)
    with qtbot.waitSignal(toast._timer.timeout):
        pass
    assert toast.isVisible()
    around.setFocus()
    qtbot.waitUntil(lambda: not toast.isVisible())
