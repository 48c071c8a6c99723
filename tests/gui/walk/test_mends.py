"""Faults that confused a user: each walk fails if the fix is reverted."""

import shutil
import time

import pytest

from tests.gui.walk.walker import ALONE_S, ROOT

SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"
LIBRARY, FIT = "window.page('library')", "window.page('fit')"


@pytest.fixture(scope="module")
def walk(open_window, tmp_path_factory):
    """A library with a model that will be moved, one that was cut short and one that is quantized already."""
    home = tmp_path_factory.mktemp("walk")
    models = home / "models"
    models.mkdir()
    shutil.copyfile(SPARK, models / "wanderer.gguf")
    (models / "stump.gguf").write_bytes(SPARK.read_bytes()[:200_000])
    made = open_window(home=home)
    made.models = models
    return made


def test_a_file_that_was_cut_short_and_one_that_was_moved_say_so(walk):
    walk.go("Library")
    walk.until(f"'within its header' in says({LIBRARY})")
    moved = walk.models.parent / "elsewhere.gguf"
    (walk.models / "wanderer.gguf").rename(moved)
    walk.until(f"'Its file was moved or deleted' in says({LIBRARY})")
    walk.until("not any('wanderer' in c.id for c in desktop.services.models.choices)")
    walk.click("Locate…", LIBRARY)
    walk.choose_file(moved)
    walk.until(f"'was moved' not in says({LIBRARY})")
    at = f"[c.model.path for c in {LIBRARY}.cards if c.model.id == 'wanderer']"
    walk.until(f"{at} == [{str(moved)!r}]")  # the same model at another path
    assert "Linked from ?" not in walk.ask(f"says({LIBRARY})")
    assert moved.exists()
    moved.rename(walk.models / "wanderer.gguf")
    walk.go("Chat")
    walk.go("Library")  # new files in a folder are found when the page is opened
    walk.until(f"{at} == [{str(walk.models / 'wanderer.gguf')!r}]")


def test_make_it_fit_opens_on_a_model_that_can_be_used(walk):
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    assert walk.ask(f"{FIT}.banner.text") == ""
    walk.click("Size of the file", FIT)
    walk.until(f"{FIT}.start.isEnabled()")
    walk.open_list("Balanced", FIT)
    assert_whole_list(walk, "Instant", "Balanced", "Best")
    walk.key("Escape")
    walk.until("app.activePopupWidget() is None")


def test_a_forecast_that_failed_is_asked_for_again(walk):
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    at = f"next((n for n in range({FIT}.model.count()) if 'wanderer' in {FIT}.model.itemData(n)), None)"
    walk.until(f"{at} is not None")
    walk.choose("Model", walk.ask(f"{FIT}.model.itemText({at})"), FIT)
    walk.until(f"{FIT}.model.currentData() == 'wanderer' and {FIT}.start.isEnabled()")
    away = walk.models.parent / "away.gguf"
    (walk.models / "wanderer.gguf").rename(away)
    walk.click("Size of the file", FIT)
    walk.key("Right")
    walk.until(f"{FIT}.banner.isVisible() and not {FIT}.start.isEnabled()")
    walk.picture("forecast-failed")
    walk.until(f"{FIT}.banner.text.endswith('.')")
    away.rename(walk.models / "wanderer.gguf")
    walk.click("Try again", FIT)
    walk.until(f"{FIT}.start.isEnabled() and not {FIT}.banner.isVisible()")


def assert_whole_list(walk, *names):
    """Every entry of the open list is completely visible."""
    time.sleep(ALONE_S)
    heights = [walk.until(f"spot({name!r})")[3] for name in names]
    assert len(set(heights)) == 1, heights


def test_an_answer_that_ends_in_code_is_shown_whole(walk):
    walk.new_chat()
    walk.say("What is Tessera?")
    view = "chat.transcript.items()[-1].text_view"
    walk.ask(f"{view}.set_markdown('Text\\n```python\\nprint(1)\\n```')")
    walk.settle()
    walk.until(f"{view}.height() >= {view}._code_box({view}.code[-1]).bottom()")
    walk.until(f"{view}.visibleRegion().boundingRect().height() == {view}.height()")


def test_a_right_click_opens_a_menu_and_leaves_the_chosen_chat(walk):
    walk.new_chat()
    walk.say("First of all")
    walk.new_chat()
    walk.say("Second of all")
    walk.until("spot('Second of all', chat.sidebar)")
    chosen = walk.ask("chat.sidebar.tree.currentIndex().data()")
    walk.click("First of all", "chat.sidebar", button=3)
    walk.find("Rename")
    assert walk.ask("chat.sidebar.tree.currentIndex().data()") == chosen == "Second of all"
    walk.key("Escape")
    walk.until("app.activePopupWidget() is None")


def test_a_button_is_not_marked_any_more_once_its_menu_closed(walk):
    walk.new_chat()
    walk.click("More", "chat.sidebar")
    walk.find("New folder")
    walk.click_at(700, 300)  # elsewhere: closes the menu
    walk.until("app.activePopupWidget() is None")
    walk.until("not chat.sidebar._more.underMouse()")


def test_an_export_proposes_a_name_and_says_where_it_went(walk):
    time.sleep(ALONE_S)
    walk.click("First of all", "chat.sidebar", button=3)
    walk.click("Export…")
    proposed = "[f.rsplit('/')[-1] for f in app.activeModalWidget().selectedFiles()]"
    walk.until(f"{proposed} == ['First of all.md']")
    target = walk.home / "kept.md"
    walk.choose_file(target)
    walk.until("'Exported to' in chat.banner.text")
    assert "First of all" in target.read_text()


def test_closing_a_banner_gives_the_focus_back(walk):
    walk.new_chat()
    walk.click("Message", "chat")
    walk.click("Second of all", "chat.sidebar", button=3)
    walk.click("Delete")
    walk.until("'deleted' in chat.banner.text")
    walk.click("Message", "chat")
    walk.click("Close", "chat.banner")
    walk.until("not chat.banner.isVisible()")
    walk.type("still here")
    walk.until("chat.composer.text == 'still here'")
    walk.key("ctrl+a", "BackSpace")


def test_a_bubble_keeps_its_shape_when_the_theme_changes(walk):
    walk.new_chat()
    walk.say("A question that is long enough to need more than a single line in a window of this size, " * 2)
    bubble = "chat.transcript.items()[0]._bubble.geometry().getRect()"
    walk.until("any(hasattr(i, '_bubble') for i in chat.transcript.items()[:1])")  # created when first drawn
    walk.until("'tokens/s' in says(chat)")  # the last to appear, and it may take space
    walk.settle()
    before = walk.ask(bubble)
    walk.ask("desktop.services.theme.set('dark', 100)")
    walk.settle()
    walk.ask("desktop.services.theme.set('light', 100)")
    walk.settle()
    walk.until(f"{bubble} == {tuple(before)}")
    view = "chat.transcript.items()[0].text_view"
    # otherwise its last line is cut off
    walk.until(f"{view}.visibleRegion().boundingRect().height() == {view}.height()")


def test_a_question_that_is_too_long_alone_offers_to_shorten_it(walk):
    walk.new_chat()
    long = walk.home / "long.txt"
    long.write_text("word " * 3000)
    walk.ask(f"chat.composer.attach([{str(long)!r}])")
    walk.until("'long.txt' in says(chat.composer)")
    walk.click("Close", "chat.banner")
    walk.say("Sum it up")
    walk.until("chat.controller.tree.path()[-1].status == 'error'")
    walk.find("Shorten the question", "chat.transcript")
    assert "Skip" not in walk.ask("says(chat)")


def test_the_models_move_to_another_folder_and_the_next_server_finds_them(walk):
    walk.go("Library")
    target = walk.home / "drive"
    target.mkdir()
    (target / "letter.txt").touch()  # not empty: the models get a separate folder in it
    walk.click("Add a file or folder…", LIBRARY)
    walk.click("Move the models to another folder…")
    walk.key("Escape")
    walk.dialog_closed()
    walk.click("Change folder…", LIBRARY)
    walk.choose_file(target)
    walk.click("Move", LIBRARY)
    walk.until(f"'tessera-models now' in says({LIBRARY})")
    assert (target / "tessera-models" / "wanderer.gguf").exists()
    assert not walk.models.exists()
    paths = f"[c.model.path for c in {LIBRARY}.cards if c.model.id == 'wanderer' and c.model.state == 'online']"
    walk.until(f"{paths} == [{str(target / 'tessera-models' / 'wanderer.gguf')!r}]")


def test_what_is_connected_ends_with_the_server(walk):
    walk.go("Server")
    walk.click("Stop", "window.page('server')")
    walk.until("not desktop.services.models.reachable")
    walk.until("window.page('server').programs.rowCount() == 0 or not window.page('server').programs.isVisible()")
    walk.click("Start", "window.page('server')")
    walk.until("desktop.services.models.reachable")
    walk.go("Library")
    moved = f"[c.model.path for c in {LIBRARY}.cards if c.model.id == 'wanderer' and c.model.state == 'online']"
    walk.until(f"{moved} == [{str(walk.home / 'drive' / 'tessera-models' / 'wanderer.gguf')!r}]")
