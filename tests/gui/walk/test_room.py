"""Content gets the space: code next to its list, a plan on one screen, an answer close to its question."""

import pytest

from tests.gui.walk.walker import ROOT

CODE, FIT = "window.page('code')", "window.page('fit')"


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def open_project(walk, *, is_reopened=False):
    walk.go("Code")
    if not is_reopened:  # the default after a start
        walk.click("Open folder", f"{CODE}.empty")
        walk.choose_file(ROOT / "devices")
    walk.until(f"{CODE}.controller.has_project and {CODE}.composer.ready")
    walk.click("errors.py", f"{CODE}.files")
    walk.until(f"{CODE}.files.source.path")


def test_the_source_has_most_of_the_window_and_its_list_is_folded_away(walk):
    open_project(walk)
    walk.settle()
    walk.until(f"{CODE}.files.source.width() > 0.4 * {CODE}.width()")
    width = walk.ask(f"{CODE}.files.source.width()")
    walk.click("Show or hide the list of files", CODE)
    walk.until(f"not {CODE}.files.tree.isVisible() and {CODE}.files.source.width() > {width} + 100")
    walk.click("Show or hide the list of files", CODE)
    walk.until(f"{CODE}.files.tree.isVisible()")
    walk.picture("code-room")


def test_sides_that_were_pulled_stay_so(walk):
    walk.go("Code")
    split = f"{CODE}.findChild(QSplitter, 'code.sides')"
    corner = f"{split}.handle(1).mapToGlobal(QPoint(0, 0))"
    x, y, height = walk.ask(f"[{corner}.x(), {corner}.y(), {split}.handle(1).height()]")
    before = walk.ask(f"{split}.sizes()")
    walk.screen.hand("mousemove", x, y + height // 2, "mousedown", 1)
    walk.screen.hand("mousemove", x + 60, y + height // 2)
    walk.screen.hand("mousemove", x + 90, y + height // 2, "mouseup", 1)
    walk.until(f"{split}.sizes()[0] > {before[0]} + 60")
    walk.settle()
    pulled = walk.ask(f"{split}.sizes()")
    walk.close()
    walk.start()
    walk.until("chat.composer.ready")
    open_project(walk, is_reopened=True)
    walk.settle()
    walk.until(f"all(abs(now - then) <= 2 for now, then in zip({split}.sizes(), {pulled}, strict=True))")


def test_the_tensors_of_a_plan_are_seen_without_scrolling(walk):
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled() and {FIT}.plan_view.isVisible()")
    walk.settle()
    for side in ("mosaic", "rival"):
        seen = f"{FIT}.plan_view.{side}.visibleRegion().boundingRect().size() == {FIT}.plan_view.{side}.size()"
        walk.until(f"{FIT}.plan_view.{side}.isVisible() and {seen}")
    walk.picture("fit-room")


def test_an_answer_stands_as_far_from_its_question_as_from_the_next_one(walk):
    walk.new_chat()
    walk.say("What is Tessera?")
    walk.say("What is quantization?")
    walk.settle()
    items = "sorted(chat.transcript.items(), key=lambda i: i.y())"
    bubbles = f"[i for i in {items} if i.message.role == 'user']"
    edges = walk.ask(f"[[i._bubble.mapTo(chat.transcript, QPoint()).y(), i._bubble.height()] for i in {bubbles}]")
    titles = walk.ask(
        f"[i._title.mapTo(chat.transcript, QPoint()).y() for i in {items} if i.message.role == 'assistant']"
    )
    gaps = [title - top - height for (top, height), title in zip(edges, titles, strict=True)]
    assert all(8 <= gap <= 24 for gap in gaps), gaps
    tops = walk.ask(f"[i.y() for i in {items}]")
    walk.hover("Your message", "chat.transcript")
    walk.until(f"any(i.underMouse() for i in {bubbles})")
    walk.settle()
    assert walk.ask(f"[i.y() for i in {items}]") == tops, "what appears under the pointer moves nothing"
    walk.picture("chat-room")
