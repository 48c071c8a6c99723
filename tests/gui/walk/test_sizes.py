"""Every page at every size of window, screen and text: no text is cut off."""

import itertools

import pytest

pytestmark = pytest.mark.timeout(900)  # thirteen pages, each until it stops changing, on a busy computer
NAMES = (
    "Chat",
    "Documents",
    "Code",
    "Library",
    "Make it fit",
    "Server",
    "Connect",
    "Dashboard",
    "Other computers",
    "Log",
    "Devices",
    "Measure",
    "Settings",
)


@pytest.fixture(scope="module")
def large_walk(open_window, large_screen):
    return open_window(on=large_screen)


def set_theme(walk, percent, theme="light", contrast="normal"):
    walk.ask(f"desktop.services.theme.set({theme!r}, {percent}, {contrast!r})")


def cut_on_all_pages(walk, name, *, by_clicks=True):
    found = {}
    for page in NAMES if by_clicks else walk.ask("window.page_names"):
        if by_clicks:
            walk.go(page)
        else:
            walk.ask(f"window.show_page({page!r})")
        walk.settle()
        walk.picture(f"{name}-{page}")
        cut = walk.cuts()
        if cut:
            found[page] = cut
    return found


# tests/gui/test_seen_by_everyone.py has 900 by 600 at other sizes of text, without a server.
@pytest.mark.parametrize(("width", "height", "percent"), [(900, 600, 200), (1280, 760, 100), (1900, 1000, 200)])
def test_nothing_is_cut(large_walk, width, height, percent):
    walk = large_walk
    set_theme(walk, percent)
    walk.ask(f"window.resize({width}, {height})")
    walk.settle()
    smallest = height == 600  # if every page can be used at this size, it can in larger windows
    assert cut_on_all_pages(walk, f"{width}x{height}-{percent}", by_clicks=smallest) == {}


def test_an_open_panel_takes_the_place_of_the_chat_where_both_do_not_fit(large_walk):
    walk = large_walk
    set_theme(walk, 150)
    walk.go("Chat")
    for width in (900, 1500):
        walk.ask(f"window.resize({width}, 600)")
        walk.until(f"window.width() == {width}")
        for name, panel in (("Tools", "chat.tools.panel"), ("System prompt and sampling", "chat.options")):
            walk.click(name, "chat.bar")
            walk.until(f"{panel}.isVisible() and chat.composer.isVisible() == {width == 1500}")
            walk.settle()
            assert walk.cuts(panel) == []
            walk.picture(f"panel-{width}")
            walk.click(name, "chat.bar")
            walk.until(f"not {panel}.isVisible() and chat.composer.isVisible()")
            assert walk.cuts("chat.composer") == []


@pytest.mark.parametrize("percent", [100, 150, 200])
def test_the_bar_shows_whole_words_or_none_however_low_the_window_is(large_walk, percent):
    """Texts with descenders were once cut off in low windows."""
    walk = large_walk
    set_theme(walk, percent)
    walk.go("Chat")
    named = []
    for height in range(480, 781, 30):
        walk.ask(f"window.resize(900, {height})")
        walk.until(f"window.height() == {height}")
        walk.settle()
        assert walk.cuts("window._rail") == [], (height, percent)
        buttons = "list(window._rail.buttons.values())"
        walk.until(f"all(b.height() >= b.sizeHint().height() for b in {buttons})")
        walk.until(f"all(b.visibleRegion().boundingRect() == b.rect() for b in {buttons})")
        ends = walk.ask(f"[(b.y(), b.y() + b.height()) for b in {buttons}]")
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends)), (height, percent)
        named.append(walk.ask(f"all(b.toolButtonStyle() == Qt.ToolButtonTextUnderIcon for b in {buttons})"))
        if height == 600:
            walk.picture(f"low-{percent}")
    assert named == sorted(named), "once there is room for words, there is in every higher window"
    assert named[-1] or percent == 200


def test_nothing_is_cut_in_german_at_high_contrast(open_window, large_screen):
    """Longer words, the largest text and the thickest borders."""
    walk = open_window(on=large_screen, env={"TESSERA_WINDOW_LANGUAGE": "de"})
    walk.until("'Wobei kann ich helfen?' in says()")
    walk.ask("window.resize(1280, 760)")
    set_theme(walk, 200, "dark", "high")
    walk.settle()
    assert cut_on_all_pages(walk, "de-dark-high-200", by_clicks=False) == {}
    walk.close()


def test_at_a_scale_of_two_nothing_is_cut(open_window, large_screen):
    walk = open_window(on=large_screen, env={"QT_SCALE_FACTOR": "2"})
    inside = "app.primaryScreen().availableGeometry().contains(window.frameGeometry())"
    walk.until(inside)
    assert cut_on_all_pages(walk, "scale-2", by_clicks=False) == {}
    walk.close()


def test_at_a_scale_of_one_and_a_half_the_window_opens_inside_the_screen(open_window):
    walk = open_window(env={"QT_SCALE_FACTOR": "1.5"})
    inside = "app.primaryScreen().availableGeometry().contains(window.frameGeometry())"
    walk.until(inside)
    walk.find("Send", "chat", disabled=True)
    walk.find("Settings", "window._rail")
    assert walk.cuts() == []
    walk.close()
