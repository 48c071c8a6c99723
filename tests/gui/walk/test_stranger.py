"""A new user's path in eight clicks: a correct answer, a document, a fitted model, a connected editor."""

import json
import re

import pytest

from app.suggestions import FOR_A_MODEL
from tests.gui.walk.walker import PAGES
from tests.support.models.small_folder import NARROW, small_file

pytestmark = pytest.mark.timeout(2400)  # a real model, and measuring, on a busy computer
PATIENCE_S = 300.0
FIT, CONNECT = "window.page('fit')", "window.page('connect')"
# What other pages then show of the editor's request.
KNOWN = {
    "Server": ("any(row[0] == 'Continue/1.0' for row in window.page('server').programs.texts())",),
    "Log": ("'loaded model' in window.page('log').log.toPlainText()",),
    "Dashboard": ("window.page('dashboard').history.texts()[0][0] == 'Continue'",),
    "Devices": ("'ram' in window.page('devices')._uses",),
}
DOCUMENT = (
    "Skerry Vore is a small island in the north. A lighthouse stands on it. The keeper of the lighthouse is "
    "Berta Quill. She has lived there for eleven years with two goats. "
    "Boats come on Mondays and bring flour, oil and letters.\n"
)


def ask(walk, question):
    """Type a question where the keyboard focus is, and press Enter; return the answer."""
    before = walk.ask("len(chat.controller.tree)")
    walk.type(question)
    walk.until(f"chat.composer.text == {question!r}")
    walk.key("Return")
    walk.until(f"len(chat.controller.tree) >= {before} + 2 and not chat.controller.busy", PATIENCE_S)
    assert walk.ask("chat.controller.tree.path()[-1].status") == "complete"
    return walk.ask("chat.controller.tree.path()[-1].content")


def answer_of_the_editor(walk, config):
    """The response that the editor gets with this configuration."""
    base = re.search(r"apiBase:\s*[\"']?(http://[^\s\"']+)", config).group(1)
    model = re.search(r"\bmodel:\s*[\"']?([\w./-]+)", config).group(1)
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    headers = {"content-type": "application/json", "user-agent": "Continue/1.0"}
    told = walk.run(
        "from urllib.request import Request, urlopen\n"
        f"request = Request({base + '/chat/completions'!r}, {json.dumps(body).encode()}, {headers})\n"
        f"print(urlopen(request, timeout={PATIENCE_S}).read().decode())"
    )
    return json.loads(told)["choices"][0]["message"]["content"]


def visit_all_pages(walk):
    """Each loads its data when shown; they show the editor's request, and the new model answers."""
    for page in ("Chat", "Documents", *PAGES):
        walk.go(page)
        for shown in KNOWN.get(page, ()):
            walk.until(shown)
    walk.go("Make it fit")
    walk.click("Chat with it", f"{FIT}.banner")
    walk.until("chat.isVisible() and chat.composer.ready")
    assert ask(walk, "What is Tessera?")
    made = walk.ask("chat.controller.tree.path()[-1].model")
    assert made.startswith("small")
    walk.go("Devices")
    walk.until(f"{made!r} in window.page('devices')._placements")


def test_from_the_first_start_to_a_connected_editor_in_eight_clicks(open_window, installed_model, tmp_path):
    """The installed program with default settings, without a network; every click goes through the X server."""
    walk = open_window(env={"TESSERA_INSTALLED_MODELS": str(installed_model)}, network=False)
    before = walk.screen.clicks
    # the user can type immediately
    walk.until("app.focusWidget() is chat.composer.editor and window.isActiveWindow()")
    fact = FOR_A_MODEL[1]
    answer = ask(walk, fact.question)
    assert re.search(fact.fact, answer, re.IGNORECASE), answer
    facts = "chat.controller.tree.path()[-1].facts"
    assert walk.ask(f"{facts}.usage.completion_tokens > 0 and {facts}.timings.tok_s > 0")
    walk.picture("1-answer")

    notes = tmp_path / "skerry.txt"
    notes.write_text(DOCUMENT)
    # A model of 135 million parameters answers it correctly nine times in ten, and repeats a wrong answer within a
    # chat, so a user asks again in a new chat.
    answers, clicks = [], walk.screen.clicks
    while not any("Quill" in answer for answer in answers):
        assert len(answers) < 5, answers
        before += walk.screen.clicks - clicks  # the cause of a wrong answer is not part of the path
        clicks = walk.screen.clicks
        walk.key("ctrl+n")
        walk.until("len(chat.controller.tree) == 0 and window.isActiveWindow()")
        walk.attach(notes)  # 1
        walk.key("ctrl+l")
        walk.until("app.focusWidget() is chat.composer.editor")
        answers.append(ask(walk, "Who is the keeper of the lighthouse?"))
    walk.picture("2-document")

    # Meanwhile a small model arrives: measuring the demo would take a minute of CPU, see test_quality.
    (walk.home / "models").mkdir(exist_ok=True)
    small_file(tmp_path / "small.gguf", 1, NARROW).rename(walk.home / "models" / "small.gguf")
    walk.click("Models", "window._rail")  # 2
    walk.click("Make small fit", "window.page('library')")  # 3
    walk.until(f"{FIT}.start.isEnabled()")
    walk.click("Make it fit", f"{FIT}.start")  # 4
    walk.until(f"'Done' in {FIT}.banner.text", 4 * PATIENCE_S)
    assert "Mean loss (KL divergence)" in walk.ask(f"says({FIT})"), "it was measured"
    walk.picture("3-fitted")

    walk.click("Server", "window._rail")  # 5
    walk.click("Connect", "window._sections")  # 6
    walk.click("Connect Continue (VS Code, JetBrains)", CONNECT)  # 7
    walk.click("Apply", CONNECT)  # 8: the consent, without which nothing is written
    walk.until(f"'is connected' in {CONNECT}.banner.text")
    walk.picture("4-connected")
    assert walk.screen.clicks - before == 8
    assert answer_of_the_editor(walk, (walk.home / "user" / ".continue" / "config.yaml").read_text())
    visit_all_pages(walk)
    assert walk.attempts() == [], "no process tries to reach another machine"
    walk.run("import socket; socket.socket().connect_ex(('192.0.2.1', 9))")
    assert len(walk.attempts()) == 1, "the record would have shown it"
    walk.close()
