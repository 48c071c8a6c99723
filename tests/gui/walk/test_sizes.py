"""Every page at every size of window, screen and text: nothing that is said is cut."""

import pytest

NAMES = (
    "Chat",
    "Code",
    "Library",
    "Make it fit",
    "Server",
    "Connect",
    "Dashboard",
    "Devices",
    "Measure",
    "Settings",
)


@pytest.fixture(scope="module")
def large_walk(open_window, large_screen):
    return open_window(on=large_screen)


def look(walk, percent, theme="light", contrast="normal"):
    walk.ask(f"desktop.services.look.set({theme!r}, {percent}, {contrast!r})")


def cut_on_all_pages(walk, name):
    found = {}
    for page in NAMES:
        walk.go(page)
        walk.settle()
        walk.picture(f"{name}-{page}")
        cut = walk.ask("cut()")
        if cut:
            found[page] = cut
    return found


@pytest.mark.parametrize(("width", "height"), [(900, 600), (1280, 760), (1900, 1000)])
@pytest.mark.parametrize("percent", [100, 200])
def test_nothing_is_cut(large_walk, width, height, percent):
    walk = large_walk
    look(walk, percent)
    walk.ask(f"window.resize({width}, {height})")
    walk.settle()
    assert cut_on_all_pages(walk, f"{width}x{height}-{percent}") == {}


def test_nothing_is_cut_in_german_dark_or_at_high_contrast(open_window, large_screen):
    walk = open_window(on=large_screen, env={"TESSERA_WINDOW_LANGUAGE": "de"})
    walk.until("'Wobei kann ich helfen?' in says()")
    walk.ask("window.resize(1280, 760)")
    found = {}
    for percent, theme, contrast in ((100, "dark", "normal"), (200, "dark", "high"), (200, "light", "high")):
        look(walk, percent, theme, contrast)
        walk.settle()
        for page in walk.ask("window.page_names"):
            walk.ask(f"window.show_page({page!r})")
            walk.settle()
            walk.picture(f"de-{theme}-{contrast}-{percent}-{page}")
            found[percent, theme, contrast, page] = walk.ask("cut()")
    assert {key: cut for key, cut in found.items() if cut} == {}
    walk.close()


def test_at_a_scale_of_two_nothing_is_cut(open_window, large_screen):
    walk = open_window(on=large_screen, env={"QT_SCALE_FACTOR": "2"})
    inside = "app.primaryScreen().availableGeometry().contains(window.frameGeometry())"
    assert walk.ask(inside), walk.ask("window.frameGeometry().getRect()")
    assert cut_on_all_pages(walk, "scale-2") == {}
    walk.close()


def test_at_a_scale_of_one_and_a_half_the_window_opens_inside_the_screen(open_window):
    walk = open_window(env={"QT_SCALE_FACTOR": "1.5"})
    inside = "app.primaryScreen().availableGeometry().contains(window.frameGeometry())"
    assert walk.ask(inside), walk.ask("window.frameGeometry().getRect()")
    walk.find("Send", "chat", disabled=True)
    walk.find("Settings", "window._rail")
    assert cut_on_all_pages(walk, "scale-1.5") == {}
    walk.close()
