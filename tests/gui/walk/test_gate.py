"""A task is chosen by click before a model is quantized; facts about the new file here and on other pages."""

import json
import re

import pytest

from tests.support.models.small_folder import NARROW, small_file

pytestmark = pytest.mark.timeout(900)  # a model is created and tested, on a busy computer
FIT, LIBRARY = "window.page('fit')", "window.page('library')"
SIZE = re.compile(r"([\d.,]+) ([KMG]i?B)\b")
BITS = re.compile(r"([\d.]+) bits")
OWN = "My own tasks…"


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def tasks(folder, *lines):
    path = folder / "commands.jsonl"
    path.write_text("\n".join(lines), "utf-8")
    return path


def shown_size(words):
    """Number and unit of the first size in a text."""
    found = SIZE.search(words)
    assert found, words
    return found.groups()


def make(walk):
    before = len(walk.states("quantize"))
    walk.click("Make it fit", f"{FIT}.start")
    walk.ends("quantize", before, "done", 600)


def test_a_file_of_tasks_with_a_fault_says_its_line(walk, tmp_path):
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    walk.choose("How thorough", "Instant", FIT)
    walk.choose("Check afterwards", OWN, FIT)
    walk.choose_file(tasks(tmp_path, '{"prompt": "How do I use tar?"}'))
    walk.until(f"'commands.jsonl, line 1' in {FIT}.banner.text")
    walk.until(f"not {FIT}.start.isEnabled()")
    walk.picture("gate-refused")
    walk.choose("Check afterwards", "Nothing", FIT)
    walk.until(f"{FIT}.start.isEnabled()")


def test_the_new_file_is_asked_the_tasks_and_the_card_says_what_came_out(walk, tmp_path):
    asked = ("tar", "grep", "ls", "cp", "ssh")
    lines = [{"prompt": f"How do I use {c}?", "regex": f"^# {c}", "max_tokens": 12} for c in asked]
    walk.go("Make it fit")
    walk.choose("Check afterwards", "commands.jsonl", FIT)
    walk.choose_file(tasks(tmp_path, *map(json.dumps, lines)))
    walk.until(f"{FIT}.start.isEnabled() and 'bits' in {FIT}.size_text.text()")
    walk.promised = walk.ask(f"{FIT}.size_text.text()")
    make(walk)
    walk.until(f"'Task commands.jsonl: 5 of 5 correct before, 5 after.' in says({FIT})")
    loss = walk.ask(
        f"says({FIT}._report.itemAt(0).widget()).split('Mean loss (KL divergence) | ')[1].split(' | ')[0]"
    )
    walk.until(f"'Measured loss of quality' in says({FIT}.chips)")
    shown = re.search(r"Measured loss of quality: [a-z ]+ \(([\d.]+)\)", walk.ask(f"says({FIT}.chips)")).group(1)
    assert abs(float(shown) - float(loss)) <= 0.0001, "what was measured replaces what was expected"
    assert "Estimated loss of quality" not in walk.ask(f"says({FIT}.chips)")
    walk.picture("gate-passed")


def test_the_new_file_is_loaded_and_answers(walk):
    walk.click("Chat with it", f"{FIT}.banner")
    walk.until("chat.isVisible() and chat.composer.ready")
    model = walk.ask("chat.controller.conversation.model")
    made = next((walk.home / "models").rglob("*.gguf"))
    assert made.stem.lower() == model
    walk.say("What is Tessera?")
    assert walk.ask("chat.controller.tree.path()[-1].status") == "complete"
    assert model in walk.loaded()
    walk.go("Make it fit")


def test_a_file_made_here_has_one_size_and_as_many_bits_on_every_page(walk):
    made = next((walk.home / "models").rglob("*.gguf"))
    true = made.stat().st_size
    told = {"promised": walk.promised, "report": walk.ask(f"says({FIT}._report.itemAt(0).widget())")}
    walk.go("Library")
    card = f"next(c for c in {LIBRARY}.cards if c.model.origin.kind == 'built')"
    walk.until(f"any(c.model.origin.kind == 'built' for c in {LIBRARY}.cards)")
    walk.until(f"' bits' in says({card}) and 'iB' in says({card})")
    told["card"] = walk.ask(f"says({card})")
    name = walk.ask(f"{card}.model.name")
    walk.new_chat()
    walk.click("Model", "chat.bar")
    row = "[t for t in says().split(' | ') if ' MiB' in t or ' MB' in t]"
    walk.until(f"len({row}) >= 2 and {name!r} in says()")
    sizes = [shown_size(words) for words in walk.ask(row)]
    walk.key("Escape")
    walk.dialog_closed()
    assert {unit for _, unit in sizes} <= {"KiB", "MiB"}, "binary units everywhere"
    for words in told.values():
        number, unit = shown_size(words)
        assert unit == "MiB", told
        assert abs(float(number) - true / 2**20) < 0.1, (told, true)
    assert any(abs(float(number) - true / 2**20) < 0.1 for number, _ in sizes), (sizes, true)
    bits = {key: float(BITS.search(words).group(1)) for key, words in told.items() if BITS.search(words)}
    assert {"promised", "card"} <= set(bits), told
    assert abs(bits["promised"] - bits["card"]) < 0.02, told


def test_a_file_made_here_says_why_it_is_not_made_smaller(walk):
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    closed = f"[{FIT}.model.itemData(n, 3) for n in range({FIT}.model.count())]"
    walk.until(f"any('Start from the original' in str(words) for words in {closed})")


def test_a_model_is_fitted_to_a_folder_of_ones_own_and_the_card_says_what_is_gained(walk, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "0.md").write_text("# Commands\n")
    (walk.home / "models").mkdir(exist_ok=True)
    small_file(tmp_path / "small.gguf", 1, NARROW).rename(walk.home / "models" / "small.gguf")
    walk.go("Library")
    walk.click("Make small fit", LIBRARY)
    walk.choose("Check afterwards", "Nothing", FIT)
    walk.choose("Calibration text", "My own text too…", FIT)
    walk.choose_file(own)
    walk.until(f"'characters of text' in {FIT}.banner.text and not {FIT}.start.isEnabled()")
    for n in range(60):
        (own / f"{n}.md").write_text(f"# Command {n}\n\nUse tar -x to unpack number {n}.\n" * 40)
    walk.click("Try again", FIT)
    walk.until(f"{FIT}.text.value == {str(own)!r} and {FIT}.start.isEnabled()")
    make(walk)
    walk.until(f"'On your own text:' in says({FIT})")
    walk.picture("own-text")
