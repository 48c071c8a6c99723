"""Ongoing work shows its progress, in a comparison of two models and on the Code page as in the chat."""

import pytest

pytestmark = pytest.mark.timeout(1500)  # a real model on a busy computer
PATIENCE_S = 600.0
PAIR = "chat.transcript.item(chat.controller.tree.leaf_id)"
CODE = "window.page('code')"
QUESTION = "Who keeps the lighthouse?"


@pytest.fixture(scope="module")
def walk(open_window, real_model, tmp_path_factory):
    """A library with a small real model under two names, so that two can be compared; its answers are short."""
    home = tmp_path_factory.mktemp("walk")
    (home / "models").mkdir()
    for name in ("first", "second"):
        (home / "models" / f"{name}-instruct.gguf").symlink_to(real_model)
    return open_window(home=home, env={"TESSERA_CHAT_MAX_TOKENS": "40"})


def assert_told(seen, seconds):
    """Load, prompt and text were each named, in this order, with seconds from one second on."""
    first = {
        words: next((n for n, told in enumerate(seen) if told.startswith(words)), -1)
        for words in ("Starting the model ", "Reading your prompt ", "Writing")
    }
    assert list(first.values()) == sorted(first.values()), seen
    assert min(first.values()) >= 0, seen
    assert any(told.startswith("Reading your prompt ") and " of " in told for told in seen), seen
    counted = any(told.split(" · ")[-1].endswith(" s") for told in seen if " · " in told)
    assert counted or seconds < 2, seen  # a fast computer is done before


def test_a_comparison_says_of_both_models_where_their_answers_are(walk, tmp_path):
    walk.until("len(desktop.services.models.partners) == 2")
    walk.click("Compare with a second model", "chat.bar")
    walk.until("chat.bar.second.isVisible()")
    notes = tmp_path / "notes.txt"
    # More than one step: the last of them must take long enough to be seen.
    notes.write_text("The keeper of the lighthouse is Berta Quill. The sea was calm that day. " * 90)
    walk.attach(notes)
    walk.click("Message", "chat")
    walk.type(QUESTION)
    walk.until(f"chat.composer.text == {QUESTION!r}")
    walk.key("Return")
    walk.until(f"'Waits for the first answer' in says({PAIR})")
    for number in (0, 1):
        pane = f"getattr({PAIR}, 'panes', [])[{number}:]"
        told = f"next((p._phase.text() for p in {pane} if p._phase is not None), '')"
        seen = walk.phases(told, "Writing", PATIENCE_S)
        assert_told(seen, walk.phases_s)
    walk.until("not chat.controller.busy", PATIENCE_S)
    walk.picture("compared")
    assert walk.ask("[m.model for m in chat.controller.tree.path()][-1]")
    answers = walk.ask(f"[p.message.status for p in {PAIR}.panes]")
    assert answers == ["complete", "complete"]
    walk.click("Continue from here", PAIR)  # of the first model: by default the newest answer is continued
    walk.until(f"chat.controller.tree.leaf_id == {PAIR}.panes[0].message.id")
    walk.settle()
    walk.until("chat.isAncestorOf(app.focusWidget())")  # the keyboard stays in the chat


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "lighthouse"
    folder.mkdir()
    for name in ("lamp", "tower", "keeper", "tide"):
        lines = [
            f"def {name}_{n}(height, wind):\n    return height * {n} + wind  # of the {name}\n" for n in range(10)
        ]
        (folder / f"{name}.py").write_text("\n".join(lines))
    return folder


def test_the_code_page_says_where_its_answer_is(walk, project):
    walk.eject()
    walk.go("Code")
    walk.click("Open folder", f"{CODE}.empty")
    walk.choose_file(project)
    walk.until(f"{CODE}.controller.has_project and {CODE}.composer.ready")
    walk.click("Question", CODE)
    asked = "What does @file:lamp.py do with the wind?"
    walk.type(asked)
    walk.until(f"{CODE}.composer.text == {asked!r}")
    walk.key("Return")
    seen = walk.phases(f"{CODE}.transcript._phase.text() if {CODE}.controller.busy else ''", "Writing", PATIENCE_S)
    assert_told(seen, walk.phases_s)
    walk.picture("code-writing")
    walk.key("Escape")
    walk.until(f"not {CODE}.controller.busy and not {CODE}.transcript._phase.isVisible()")


def test_the_agent_of_the_code_page_says_where_it_is(walk, project):
    walk.go("Code")
    if not walk.ask(f"{CODE}.controller.has_project"):
        walk.click("Open folder", f"{CODE}.empty")
        walk.choose_file(project)
        walk.until(f"{CODE}.controller.has_project and {CODE}.composer.ready")
    walk.eject()
    walk.go("Code")
    walk.click("Work with tools", CODE)
    walk.click("Question", CODE)
    walk.type("List the files.")
    walk.until(f"{CODE}.composer.text == 'List the files.'")
    walk.key("Return")
    told = f"{CODE}.transcript._phase.text() if {CODE}.controller.busy else ''"
    seen = walk.phases(told, "Reading your prompt ", PATIENCE_S)
    assert any(words.startswith("Starting the model ") for words in seen), seen
    walk.click("Stop (Esc)", CODE)
    walk.until(f"not {CODE}.controller.busy", PATIENCE_S)
