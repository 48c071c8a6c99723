"""Interactive `tessera chat` in a real pseudo-terminal."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from tests.support.servers import ROOT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of Windows are another thing"),
]
PASTED = "Traceback (most recent call last):\n  File 'a.py', line 1\n    x = 1 / 0\nZeroDivisionError\nwhy?"
UP, ENTER, ALT_ENTER, CTRL_D = "\x1b[A", "\r", "\x1b\r", "\x04"
WAIT_S = 60


class Terminal:
    """A command in a pseudo-terminal; `text` is its whole output."""

    def __init__(self, home, *arguments, cwd=None, columns=40):
        import pty
        import termios

        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (30, columns))
        environment = {**os.environ, "TESSERA_HOME": str(home), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        environment["PYTHONPATH"] = str(ROOT)
        for size in ("COLUMNS", "LINES"):  # else these count before the terminal's own size
            environment.pop(size, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", *arguments],
            cwd=cwd or ROOT,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""
        self._new = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with contextlib.suppress(OSError):  # end of the terminal
            while part := os.read(self._master, 65536):
                with self._new:
                    self.text += part.decode("utf-8", "replace")
                    self._new.notify_all()

    def type(self, text):
        os.write(self._master, text.encode())

    def until(self, pattern, after=0):
        """Wait for the pattern; return the end of its first match."""
        end = time.monotonic() + WAIT_S
        with self._new:
            while not (found := re.compile(pattern, re.DOTALL).search(self.text, after)):
                assert self._new.wait(max(end - time.monotonic(), 0)), f"no {pattern!r} in {self.text[after:]!r}"
        return found.end()

    def ready(self, after=0):
        """Wait until the prompt accepts input: it then enables bracketed paste."""
        return self.until(r"\x1b\[\?2004h.*?>", after)

    def ask(self, text, after):
        """Type a message, and wait for the prompt after the answer."""
        self.type(text + ENTER)
        return self.ready(self.until(r"tok/s", after))

    def command(self, text, after):
        """Type a command, and wait for the prompt after its output."""
        self.type(text + ENTER)
        return self.ready(self.until(r"\x1b\[\?2004l", after))

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        os.close(self._master)


@pytest.fixture
def opened(beside):
    """A function that opens terminals for a test."""
    made = []

    def open_terminal(*arguments, **more):
        made.append(Terminal(beside.home, *arguments, **more))
        return made[-1]

    yield open_terminal
    for terminal in made:
        terminal.close()


def saved(terminal, at, file):
    """The conversation so far, as written by /save, and the end of the terminal's text."""
    file.unlink(missing_ok=True)
    at = terminal.command(f"/save {file}", at)
    return json.loads(file.read_text()), at


def questions(conversation):
    return [message["content"] for message in conversation["messages"] if message["role"] == "user"]


def test_pasted_lines_are_one_question_and_history_brings_it_back(opened, tmp_path):
    chat = opened("chat", "spark", "--max-tokens", "3")
    at = chat.ready()
    chat.type(f"\x1b[200~{PASTED}\x1b[201~")
    at = chat.ask("", at)
    chat.type(UP)
    at = chat.ask("", at)
    conversation, at = saved(chat, at, tmp_path / "chat.json")
    assert questions(conversation) == [PASTED, PASTED]
    chat.type(CTRL_D)
    assert chat.process.wait(WAIT_S) == 0
    again = opened("chat", "spark", "--max-tokens", "3")
    at = again.ready()
    again.type(UP + UP)  # the previous command was /save
    again.until("ZeroDivisionError", at)
    at = again.ask("", at)
    assert questions(saved(again, at, tmp_path / "chat.json")[0]) == [PASTED]


def test_lines_are_edited_and_a_message_may_have_several(opened, tmp_path):
    chat = opened("run", "spark")
    at = chat.command("/set max_tokens 3", chat.ready())
    at = chat.ask("Hxllo\x1b[D\x1b[D\x1b[D\x7fe", at)
    chat.type(f"one{ALT_ENTER}two")
    at = chat.ask("", at)
    chat.type(f'"""a{ENTER}b"""')
    at = chat.ask("", at)
    conversation, _ = saved(chat, at, tmp_path / "chat.json")
    assert questions(conversation) == ["Hello", "one\ntwo", "a\nb"]
    assert conversation["options"] == {"max_tokens": 3}


def test_commands_set_save_and_load(opened, tmp_path):
    (tmp_path / "notes file.txt").write_text("The rent is due on the fifth.")
    no_roles = {"tessera_chat": 1, "model": "m", "system": None, "options": {}, "messages": [{}]}
    (tmp_path / "other.json").write_text(json.dumps(no_roles))
    chat = opened("chat", "spark", "-s", "Be brief.", "--max-tokens", "3", cwd=tmp_path)
    at = chat.ready()
    at = chat.command("/file 'notes file.txt'", at)
    at = chat.ask("When is it due?", at)
    at = chat.command("/system Be kind.", at)
    at = chat.command("/set parameter temperature 0.5", at)
    conversation, at = saved(chat, at, tmp_path / "first.json")
    assert conversation["system"] == "Be kind."
    assert conversation["messages"][0] == {"role": "system", "content": "Be kind."}
    assert "The rent is due on the fifth." in questions(conversation)[0]
    assert conversation["options"] == {"temperature": 0.5, "max_tokens": 3}
    for typed, said in (
        ("/set temprature 1", "There is no option"),
        ("/set temperature 9", "9.0 is not in the range"),
        ("/sav x", "Did you mean /save"),
        ("/file nothing.txt", "cannot be attached"),
        ("/save other.json", "is not overwritten"),
        ("/save nowhere/first.json", "There is no folder nowhere"),
        ("/load other.json", "not a conversation"),
    ):
        begun, at = at, chat.command(typed, at)
        assert said in re.sub(r"\s+", " ", chat.text[begun:at])
    assert not (tmp_path / "nowhere").exists()
    at = chat.command("/new", at)
    at = chat.command("/load first.json", at)
    again, _ = saved(chat, at, tmp_path / "second.json")
    assert again == conversation


def test_a_failed_question_is_forgotten_and_the_conversation_goes_on(opened, tmp_path):
    (tmp_path / "long.txt").write_text("word " * 5000)
    chat = opened("chat", "spark", "--max-tokens", "3", "--file", str(tmp_path / "long.txt"))
    at = chat.ready()
    chat.type("What is in it?" + ENTER)
    at = chat.ready(chat.until("no longer attached", chat.until("1024", at)))
    at = chat.ask("Hello", at)
    assert questions(saved(chat, at, tmp_path / "chat.json")[0]) == ["Hello"]


def test_answers_break_between_words(opened):
    """Asserts that no line of an answer is longer than the terminal is wide."""
    asked = ("chat", "spark", "-t", "0", "--max-tokens", "20", "-p", "What is a token?")
    piped = subprocess.run(
        [sys.executable, "-m", "app", *asked], cwd=ROOT, capture_output=True, text=True, timeout=90, check=True
    ).stdout
    assert len(piped) > 20
    chat = opened(*asked, columns=14)
    chat.until("tok/s, first token")  # progress has a speed, too
    answer = re.sub(r"[^\n]*tok/s, first token.*", "", re.sub(r"\x1b\[2K|\r", "", chat.text), flags=re.DOTALL)
    answer = answer.rpartition("prompt")[2]
    lines = [re.sub(r"(\S+)\x1b\[\d+D\x1b\[K$", "", line) for line in answer.split("\n")]
    assert max(len(line) for line in lines[1:-1]) < 14
    assert "".join(answer.split())


def test_code_of_a_small_model_stops_going_round_and_says_so(beside, tmp_path):
    (tmp_path / "a.py").write_text("def whole_run():\n    return 1\n")
    command = [sys.executable, "-m", "app", "code", str(tmp_path), "--model", "spark", "--max-tokens", "4"]
    done = subprocess.run(
        [*command, "-p", "Rename whole_run to full_run"],
        cwd=ROOT,
        env={**os.environ, "TESSERA_HOME": str(beside.home)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert "too few for code" in done.stderr
    assert "4 tokens" in done.stderr
    assert "cut at the limit" in done.stderr


def test_a_model_is_loaded_by_hand_and_the_log_is_shown(beside):
    def run(*words):
        command = [sys.executable, "-m", "app", *words]
        environment = {**os.environ, "TESSERA_HOME": str(beside.home)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        return done.stdout

    loaded = json.loads(run("models", "load", "spark", "--ctx", "512", "--pin", "--json"))
    assert (loaded["state"], loaded["pinned"]) == ("loaded", True)
    (row,) = json.loads(run("models", "ps", "--json"))["models"]
    assert row["resident_bytes"] > 0
    assert row["prefix_bytes"] < row["memory_bytes"]
    assert "in use" in run("models", "loaded")
    assert "/load" in run("logs", "--lines", "1000")
    assert len(run("logs", "-n", "2").splitlines()) == 2
    assert (beside.home / "logs" / "server.log").stat().st_mode & 0o777 == 0o600


def test_a_model_too_small_for_a_text_says_so_and_only_then(beside):
    command = [sys.executable, "-m", "app", "chat", "spark", "--max-tokens", "2", "-p", "What does this change?"]
    environment = {**os.environ, "TESSERA_HOME": str(beside.home)}
    said = []
    for piped in ("", "a line of a diff\n" * 40):
        done = subprocess.run(
            command, cwd=ROOT, env=environment, input=piped, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stderr
        said.append("too few to be right about a text" in done.stderr)
    assert said == [False, True]
