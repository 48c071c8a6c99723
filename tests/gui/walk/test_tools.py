"""Tools of a chat and tasks of the Code page, with another server's model that generates what a test needs."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.support.fakes.fake_upstream import MODEL, FakeUpstream
from tests.support.fakes.mcp_oauth import SignInServer
from tests.support.fakes.mcp_servers import DEMO
from tests.support.fakes.web_site import web_site
from tests.support.servers import wait_for

CODE, LAST = "window.page('code')", "chat.controller.tree.path()[-1]"
CONSENT = "chat.tools.card"
EDIT = """lamp.py
<<<<<<< SEARCH
    return height + wind
=======
    return height * wind
>>>>>>> REPLACE
"""


class Talker(FakeUpstream):
    """Calls its first tool with the sum in a question, and answers tasks on code with an edit."""

    pause_s = 0.0

    def talk(self, send, body, said):
        time.sleep(self.pause_s)
        send(self.chunk({"role": "assistant", "content": ""}))
        if body["messages"][-1]["role"] == "tool":
            words = f"The tool says: {said}"
        elif body.get("tools") and "plus" in said:
            made = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps(self.arguments)}
            send(self.chunk({"tool_calls": [{"id": "call_1", "type": "function", "index": 0, "function": made}]}))
            send(self.chunk({}, "tool_calls"))
            return 3
        elif "commit message" in json.dumps(body["messages"]).lower():
            words = "Multiply by the wind"
        else:
            words = f"So it is.\n\n{EDIT}"
        send(self.chunk({"content": words}))
        send(self.chunk({}, "stop"))
        return 4


def kept(walk):
    """Permanent decisions, on disk."""
    file = walk.home / "config" / "tool-consents.json"
    return json.loads(file.read_text())["data"] if file.exists() else {}


@pytest.fixture(scope="module")
def talker():
    running = Talker()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """The folder of the desktop's browser: it opens a page as soon as a file `go` exists."""
    folder = tmp_path_factory.mktemp("browser")
    page = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=60).read()"
    program = folder / "xdg-open"
    program.write_text(f'#!/bin/sh\n[ -e {folder}/go ] && exec {sys.executable} -c "{page}" "$1"\n')
    program.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def walk(open_window, talker, browser):
    made = open_window({"PATH": f"{browser}{os.pathsep}{os.environ['PATH']}"})
    made.manage("upstreams/desk", {"url": talker.url}, "PUT")
    made.manage("upstream-rules", {"model": "desk/*", "upstream": "desk"}, "PUT")
    made.until(f"any({MODEL!r} in c.id for c in desktop.services.models.choices)")
    made.ask(f"chat.use_model(next(c.id for c in desktop.services.models.choices if {MODEL!r} in c.id))")
    return made


def asked(walk, text):
    """Send this text, and wait for the consent request for a tool."""
    walk.click("Message", "chat")
    walk.type(text)
    walk.until(f"chat.composer.text == {text!r}")
    walk.key("Return")
    walk.until(f"{CONSENT}.isVisible()")


def shown_call(walk, arguments):
    """Wait until the consent request is for the call with these arguments, not for the start before it."""
    walk.until(f"{CONSENT}.isVisible() and {arguments!r} in {CONSENT}.detail.toPlainText()")


def decided(walk, wanted):
    """Wait until exactly these permanent decisions are on disk."""
    wait_for(lambda: [each["decision"] for each in kept(walk).values()] == wanted, 60, f"{wanted} on the disk")


def worked(walk, talker, before):
    """Wait until the model got a request after `before`, and its answer with one edit is shown."""
    wait_for(lambda: len(talker.seen) > before, 120, "a question to the model")
    walk.until(f"not {CODE}.controller.busy and {CODE}.review.hunks.count() == 1")


def ended(walk):
    walk.until("not chat.controller.busy")
    return walk.ask(f"{LAST}.content")


def test_tools_are_added_and_removed(walk, tmp_path):
    script = tmp_path / "demo.py"
    script.write_text(DEMO)
    walk.click("Tools", "chat.composer")
    walk.click("Add tools…", "chat")
    walk.choose("Well-known MCP servers", "Time")
    walk.until("chat.tools.panel.dialog.where.text() == 'uvx mcp-server-time'")
    walk.fill("Name", "sums")
    walk.fill("Command or address", f"{sys.executable} {script}")
    walk.fill("Environment variables, or HTTP headers for an address: one NAME=value per line", "LANG=C")
    walk.click("Test")
    walk.until("'Its tools: add, fail, wait' in says(app.activeModalWidget())")
    walk.picture("add-tools")
    walk.click("Add")
    walk.until("app.activeModalWidget() is None and 'sums' in chat.controller.conversation.tools")
    walk.click("fail of sums", "chat")
    decided(walk, ["never"])
    walk.picture("tools-of-a-server")
    walk.click("Tools of sums", "chat")
    walk.until("not spot('fail of sums', chat)")
    walk.click("Add tools…", "chat")
    walk.fill(
        "Or paste the settings (JSON) that the server's web page shows",
        '{"mcpServers": {"other": {"command": "true"}}}',
    )
    walk.click("Add")
    walk.until("app.activeModalWidget() is None and spot('Remove other', chat)")
    walk.click("Test other", "chat")  # the program ends at once
    walk.until("'did not start' in says(chat.tools.panel)")
    walk.click("Remove other", "chat")
    walk.until("not spot('Remove other', chat)")
    walk.click("Calculator", "chat")
    walk.until("'tessera:calculator' in chat.controller.conversation.tools")
    walk.click("Calculator", "chat")
    walk.until("chat.controller.conversation.tools == ('sums',)")
    walk.click("Use these in every new chat", "chat")
    walk.until("desktop.services.settings.now.text('chat.tools') == 'sums'")
    walk.key("ctrl+n")
    walk.until("spot('Tools (1)', chat.composer) and chat.controller.conversation.tools == ('sums',)")
    walk.click("Tools (1)", "chat.composer")
    walk.until("not chat.tools.panel.isVisible()")
    walk.click("Tools (1)", "chat.composer")


def test_tools_are_asked_for_and_decided_about(walk, talker):
    talker.arguments = {"a": 2, "b": 40}
    asked(walk, "What is two plus forty?")
    walk.until("'Waiting for your permission' in says(chat.transcript)")
    walk.picture("tool-consent")
    walk.click("Allow once", CONSENT)  # the start of the program
    shown_call(walk, '"b": 40')
    offered = [tool["function"]["name"] for tool in talker.seen[-1][1]["tools"]]
    assert offered == ["mcp__sums__add", "mcp__sums__wait"], "one is switched off"
    assert "add" in walk.ask(f"says({CONSENT})")
    walk.click("Allow once", CONSENT)
    assert ended(walk).endswith("42")
    asked(walk, "And once more two plus forty?")
    walk.click("Decline", CONSENT)
    assert "42" not in ended(walk)
    asked(walk, "And for this chat, two plus forty?")
    walk.click("More choices", CONSENT)
    walk.click("For this chat")
    assert ended(walk).endswith("42")
    walk.say("Is two plus forty the same again?")
    assert walk.ask(f"{LAST}.content").endswith("42"), "not asked again in this chat"
    walk.new_chat()
    walk.until("'sums' in chat.controller.conversation.tools")
    asked(walk, "In another chat, two plus forty?")
    walk.click("More choices", CONSENT)
    walk.click("Always")
    assert ended(walk).endswith("42")
    decided(walk, ["never", "always"])
    walk.click("Ask again for mcp__sums__fail", "chat")
    decided(walk, ["always"])
    walk.click("Ask again for mcp__sums__add", "chat")
    walk.until("not spot('Ask again for mcp__sums__add', chat)")
    decided(walk, [])
    asked(walk, "Asked again, two plus forty?")
    walk.click("More choices", CONSENT)
    walk.click("Never")
    assert "42" not in ended(walk)
    decided(walk, ["never"])
    walk.click("Tools", "chat.bar")


def test_the_web_is_searched_and_sources_are_shown(walk, talker):
    settings, words = "window.page('settings')", "Address of a SearXNG instance for web search"
    with web_site() as site:
        address = f"http://127.0.0.1:{site.server_port}"
        walk.go("Settings")
        walk.click("Chat", settings)
        walk.fill(words, address, settings)
        walk.key("Tab")
        walk.until(f"desktop.services.settings.now.text('web.searxng') == {address!r}")
        walk.go("Chat")
        walk.new_chat()
        walk.click("Tools (1)", "chat.composer")
        walk.click("Web", "chat.tools.panel")
        walk.click("sums", "chat.tools.panel")
        walk.until("chat.controller.conversation.tools == ('tessera:web',)")
        talker.arguments = {"query": "lamp plus sea"}
        asked(walk, "What is lamp plus sea?")
        assert site.seen == [], "nothing is sent before it is allowed"
        assert "lamp plus sea" in walk.ask(f"{CONSENT}.detail.toPlainText()")
        walk.picture("web-consent")
        walk.click("Allow once", CONSENT)
        assert "https://example.org/lamp" in ended(walk)
        assert [path for path, _ in site.seen] == ["/search?q=lamp+plus+sea&format=json"]
        walk.click("[1] The lamp · example.org", "chat.transcript")
        walk.until("'https://example.org/lamp' in app.activeModalWidget().informativeText()")
        walk.click("Cancel")
        walk.until("app.activeModalWidget() is None")
        walk.picture("web-sources")
        walk.click("Tools (1)", "chat.composer")


def test_a_server_at_an_address_asks_for_a_sign_in(walk, browser):
    far = SignInServer()
    walk.new_chat()
    walk.click("Tools (1)", "chat.composer")
    walk.click("Add tools…", "chat")
    walk.fill("Name", "far")
    walk.fill("Command or address", far.url)
    walk.click("Add")
    walk.until("app.activeModalWidget() is None and 'far' in chat.controller.conversation.tools")
    walk.click("Test far", "chat")
    walk.click("Sign in to far", "chat")
    walk.click("Cancel the sign-in to far", "chat")
    walk.until("'the sign-in was cancelled' in says(chat.tools.panel)")
    (browser / "go").touch()
    walk.click("Test far", "chat")
    walk.click("Sign in to far", "chat")
    walk.until("spot('add of far', chat)")
    walk.picture("signed-in")
    walk.click("Sign out of far", "chat")
    walk.until("spot('Test far', chat) and not spot('Sign out of far', chat)")
    walk.click("Remove far", "chat")
    walk.until("not spot('Remove far', chat)")
    far.stop()
    walk.click("Tools (1)", "chat.composer")


def test_facts_are_remembered_used_edited_and_switched_off(walk, talker, tmp_path):
    fact, better = "Measures plus signs in metres", "Measures everything in feet"
    walk.new_chat()
    walk.click("Tools (1)", "chat.composer")
    walk.click("Memory", "chat.tools.panel")
    walk.click("sums", "chat.tools.panel")
    walk.until("chat.controller.conversation.tools == ('tessera:memory',)")
    walk.click("Use these in every new chat", "chat.tools.panel")
    talker.arguments = {"fact": fact}
    asked(walk, "Metres are my unit, plus remember that")
    assert "remember this for later chats" in walk.ask(f"says({CONSENT})")
    walk.picture("memory-consent")
    walk.click("Allow once", CONSENT)
    assert ended(walk).endswith(f"Remembered: {fact}")

    walk.new_chat()
    walk.say("Which unit do I like?")
    assert fact in json.dumps(talker.seen[-1][1]["messages"][0])
    walk.until(f"'Used memory: {fact}' in says(chat.transcript)")
    walk.click("Memory…", "chat.transcript")
    walk.fill(f"Fact: {fact}", better)
    walk.key("Return")
    walk.until(f"spot('Fact: {better}')")
    walk.choose(f"Where it is used: {better}", "Everywhere")
    walk.fill("New fact", "Lives by the sea")
    walk.click("Remember")
    walk.click("Forget: Lives by the sea")
    walk.click("Undo")
    walk.until("spot('Fact: Lives by the sea')")
    walk.picture("memory")
    walk.fill("Search facts", "feet")
    walk.until("not spot('Fact: Lives by the sea')")
    walk.click("Export…")
    walk.name_file(tmp_path / "memory.json")
    walk.key("Return")
    wait_for((tmp_path / "memory.json").exists, 60, "the exported memory")
    exported = json.loads((tmp_path / "memory.json").read_text())["memory"]
    assert [row["text"] for row in exported] == ["Lives by the sea", better]
    walk.choose("Memory", "Off: use and save nothing", "app.activeModalWidget()")
    walk.until("desktop.services.settings.now.text('chat.memory') == 'off'")
    walk.click("Done", "app.activeModalWidget()")
    walk.until("app.activeModalWidget() is None")
    walk.say("And which unit now?")
    assert better not in json.dumps(talker.seen[-1][1]["messages"])
    assert "tools" not in talker.seen[-1][1], "nothing is saved either"
    walk.click("Show and edit the memory…", "chat.tools.panel")
    walk.until("spot('Fact: Lives by the sea')")
    walk.click("Done", "app.activeModalWidget()")
    walk.until("app.activeModalWidget() is None")
    walk.click("Tools (1)", "chat.composer")


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "lighthouse"
    folder.mkdir()
    (folder / "lamp.py").write_text("def bright(height, wind):\n    return height + wind\n")
    for arguments in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=K", "-c", "user.email=k@x", "commit", "-qm", "a"),
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


def test_tasks_edits_and_a_commit_message_of_the_code_page(walk, project, talker):
    lamp = project / "lamp.py"
    before, after = lamp.read_text(), lamp.read_text().replace("+", "*")
    walk.go("Code")
    walk.click("Open folder", f"{CODE}.empty")
    walk.choose_file(project)
    walk.until(f"{CODE}.controller.has_project and {CODE}.composer.ready")
    walk.choose(
        "Model",
        walk.ask(f"{CODE}.model.itemText({CODE}.model.findText({MODEL!r}, Qt.MatchFlag.MatchContains))"),
        CODE,
    )
    walk.click("Explain", CODE)
    walk.until(f"'Select lines' in {CODE}.banner.text or {CODE}.controller.busy")
    walk.click("lamp.py", f"{CODE}.files")
    walk.until(f"{CODE}.files.source.path")
    for task in ("Explain", "Fix", "Document", "Write tests"):
        walk.click("File", f"{CODE}.files")
        walk.key("ctrl+a")
        walk.until(f"{CODE}.files.selected() is not None")
        before_task = len(talker.seen)
        walk.click(task, CODE)
        worked(walk, talker, before_task)
        walk.click("Files", f"{CODE}.tabs")
    walk.click("Copy code", f"{CODE}.transcript._views[-1]")  # of the newest answer: the others are not visible
    walk.until("app.clipboard().text().strip()")
    before_task = len(talker.seen)
    walk.click("Fix pasted output", CODE)
    worked(walk, talker, before_task)
    assert lamp.read_text() == before, "nothing is written unasked"
    walk.click("Edits", f"{CODE}.tabs")
    walk.picture("edits")
    walk.click("Apply", f"{CODE}.review")
    walk.until(f"'Written: lamp.py' in {CODE}.banner.text")
    assert lamp.read_text() == after
    walk.click("Commit message", CODE)
    walk.until(f"not {CODE}.controller.busy and 'Multiply by the wind' in reads({CODE}.transcript)")
    assert walk.ask(f"says({CODE}.transcript).count({CODE}.model.currentText())") > 1, "each answer names its model"
    assert lamp.read_text() == after, "nothing is committed"
    walk.click("Undo", f"{CODE}.review")
    walk.until(f"'Undone: lamp.py' in {CODE}.banner.text")
    assert lamp.read_text() == before


def test_a_question_is_asked_again_without_a_file(walk, talker):
    """In the open project: the context is listed below the answer, and each item can be excluded."""
    walk.go("Code")
    asked = "What does @file:lamp.py say?"
    walk.fill("Question", asked, CODE)
    before = len(talker.seen)
    walk.key("Return")
    wait_for(lambda: len(talker.seen) > before, 120, "a question to the model")
    chips = f"[w.accessibleName() for w in {CODE}.findChildren(type({CODE}.commit)) if w.isVisible()]"
    walk.until(f"not {CODE}.controller.busy and any('lamp.py' in name for name in {chips})")
    assert "def bright" in json.dumps(talker.seen[-1][1]["messages"])
    name = next(name for name in walk.ask(chips) if "lamp.py" in name)
    title = name.removeprefix("Skip ")
    before = len(talker.seen)
    walk.click(f"Skip {title}", CODE)
    walk.until(f"not {CODE}.controller.busy and {name!r} not in {chips}")
    assert len(talker.seen) == before + 1
    assert "def bright" not in json.dumps(talker.seen[-1][1]["messages"][-1])


def test_an_answer_that_is_stopped_on_the_code_page_shows_no_more_progress(walk, talker):
    shown = f"{CODE}.transcript._phase.isVisible()"
    walk.go("Code")
    talker.pause_s = 20.0  # longer than the click needs
    walk.fill("Question", "What is left of the lamp?", CODE)
    walk.key("Return")
    walk.until(f"{CODE}.controller.busy and {shown}")
    walk.click("Stop (Esc)", CODE)
    walk.until(f"not {CODE}.controller.busy and not {shown}")
    words = walk.ask(f"says({CODE}.transcript)")
    assert not any(phase in words for phase in ("Writing", "Waiting", "Reading")), words
    talker.pause_s = 0.0
    before = len(talker.seen)
    walk.fill("Question", "And now?", CODE)
    walk.key("Return")
    worked(walk, talker, before)


def test_how_well_a_model_calls_tools_is_tested_stopped_and_kept(walk, talker):
    panel = "chat.tools.panel"
    walk.new_chat()
    walk.click("Tools", "chat.bar")
    walk.until(f"{panel}.isVisible() and 'has not been measured' in says({panel})")
    talker.pause_s = 1.0
    walk.click("Test this model with tools", panel)
    walk.until(f"'Testing how well this model calls tools' in says({panel})")
    walk.click("Stop", panel)
    talker.pause_s = 0.0
    walk.until(f"spot('Test this model with tools', {panel}) and 'has not been measured' in says({panel})")
    walk.click("Test this model with tools", panel)
    walk.until(f"'Calls tools correctly in ' in says({panel})")
    walk.picture("tools-tested")
    walk.click("Tools", "chat.bar")
    walk.until(f"not {panel}.isVisible()")
