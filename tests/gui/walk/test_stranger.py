"""A stranger's path: first start, an answer, a document, a fitted model, a connected editor, in eight clicks."""

import json
import re
import urllib.request


def test_from_the_first_start_to_a_connected_editor_in_eight_clicks(open_window, tmp_path):
    walk = open_window()
    clicks = 0

    def click(text, within="None"):
        nonlocal clicks
        clicks += 1
        walk.click(text, within)

    walk.until("app.focusWidget() is chat.composer.editor")  # one can write at once
    walk.type("What is quantization?")
    walk.until("chat.composer.text == 'What is quantization?'")
    walk.key("Return")
    walk.until("len(chat.controller.tree) == 2 and not chat.controller.busy")
    answer = walk.ask("chat.controller.tree.path()[-1].content")
    assert "bits" in answer, answer
    walk.picture("1-answer")

    notes = tmp_path / "notes.txt"
    notes.write_text("The keeper of the lighthouse is Berta Quill.")
    click("Attach files", "chat")
    walk.until("app.activeModalWidget() is not None")
    walk.type(str(notes))
    walk.key("Return")
    walk.until("'notes.txt' in says(chat.composer)")
    walk.until("window.isActiveWindow()")
    walk.key("ctrl+l")
    walk.type("Who keeps it?")
    walk.until("chat.composer.text == 'Who keeps it?'")
    walk.key("Return")
    walk.until("len(chat.controller.tree) == 4 and not chat.controller.busy")
    assert walk.ask("chat.controller.tree.path()[2].attachments[0].name") == "notes.txt"

    click("Models", "window._rail")
    click("Make Spark (demo) fit", "window.page('library')")
    walk.until("window.page('fit').start.isEnabled()")
    walk.ask("window.page('fit').tier.setCurrentIndex(0)")  # measuring takes a minute; not what is tried here
    click("Make it fit", "window.page('fit').start")
    walk.until("'Done' in window.page('fit').banner.text", 100)
    walk.picture("2-fitted")

    click("Server", "window._rail")
    click("Connect", "window._sections")
    page = "window.page('connect')"
    click("Connect Continue (VS Code, JetBrains)", page)
    click("Apply", page)  # the consent, without which nothing is written
    assert clicks == 8
    walk.until(f"'is connected' in {page}.banner.text")
    config = (walk.home / "user" / ".continue" / "config.yaml").read_text()
    base = re.search(r"apiBase:\s*[\"']?(http://[^\s\"']+)", config).group(1)
    with urllib.request.urlopen(f"{base}/models", timeout=20) as told:
        assert len(json.load(told)["data"]) >= 2
    walk.close()
