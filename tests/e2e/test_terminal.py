"""The `tessera` command as used by people and by scripts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.models.shapes import Q, scaled, write_shape
from tests.support.servers import HEARS_INTERRUPTS

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]


def tessera(*arguments, stdin=None):
    """A command, with a separate server if it needs one; with the server of a home where `running` is used."""
    given = {"input": stdin} if stdin is None or isinstance(stdin, str) else {"stdin": stdin}
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=90, **given
    )


@pytest.fixture
def running(beside, monkeypatch):
    """Commands find a running server: other tests start one and load a model."""
    monkeypatch.setenv("TESSERA_HOME", str(beside.home))


def test_one_answer_and_its_speed():
    done = tessera("chat", "--prompt", "What is a token?", "--temperature", "0")
    assert done.returncode == 0
    assert "token" in done.stdout
    assert "tok/s" in done.stderr
    assert "tok/s" not in done.stdout


@pytest.mark.usefixtures("running")
def test_a_prompt_is_given_piped_or_both_and_json_is_one_object(tmp_path):
    """Piped text is placed below the prompt; `-` is a prompt with only the piped text."""
    (tmp_path / "note.txt").write_text("a token\n")
    options = ("-t", "0", "--json", "--max-tokens", "8")
    given = json.loads(tessera("chat", "spark", "-p", "What is\n\na token", *options).stdout)
    alone = json.loads(tessera("chat", "-p", "-", *options, stdin="What is\n\na token").stdout)
    piped = json.loads(tessera("chat", "spark", "-p", "What is", *options, stdin="a token\n").stdout)
    with (tmp_path / "note.txt").open() as file:
        read = json.loads(tessera("chat", "spark", "-p", "What is", *options, stdin=file).stdout)
    assert (given["model"], given["finish_reason"]) == ("spark", "length")
    assert given["usage"]["completion_tokens"] == 8
    assert given["usage"]["prompt_tokens"] > 5
    assert given["timings"]["ttft_s"] > 0
    for other in (alone, piped, read):
        assert other["usage"]["prompt_tokens"] == given["usage"]["prompt_tokens"]
        assert other["answer"] == given["answer"]


@pytest.mark.usefixtures("running")
def test_a_pipe_that_stays_open_and_empty_holds_nobody_up():
    reading, writing = os.pipe()
    try:
        done = tessera("chat", "spark", "-p", "Hi", "--max-tokens", "3", stdin=reading)
    finally:
        os.close(reading)
        os.close(writing)
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "Nothing came on standard input within 3 s" in done.stderr


def test_a_file_far_too_large_is_refused_before_a_model_is_loaded(tmp_path):
    (tmp_path / "image.bin").touch()
    os.truncate(tmp_path / "image.bin", 100 << 20)
    with (tmp_path / "image.bin").open() as file:
        done = tessera("chat", "spark", "-p", "What is this?", stdin=file)
    assert done.returncode == 2
    assert "16 MiB" in done.stderr


def test_a_conversation_remembers():
    done = tessera("chat", "-t", "0", stdin="Hello\n/help\n/new\nHello\n/exit\n")
    answers = [line for line in done.stdout.splitlines() if line]
    assert done.returncode == 0
    assert len(answers) == 2
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("chat", "no-such-model", "-p", "x"), 3, "no-such-model"),
        (("chat", "--json"), 2, "--prompt"),
        (("chat", "-p", "word " * 3000), 3, "1024"),
        (
            ("chat", "assets/models/spark-f16.gguf", "-p", "x"),
            3,
            "assets/models/spark-f16.gguf is a file; `tessera models link assets/models/spark-f16.gguf`",
        ),
        (("launch", "claude", "--model", "no-such-model"), 3, "no-such-model"),
        (("code", "docs", "-m", "no-such-model", "-p", "x"), 3, "no-such-model"),
        (("jobs", "cancel", "no-such-job"), 3, "no-such-job"),
        (("tools", "remove", "no-such-tool"), 3, "no-such-tool"),
        (("evaluate", "no-such-model"), 3, "no-such-model"),
        (("evaluate", "spark", "--against", "no-such-model"), 3, "no-such-model"),
        (("chat", "-t", "nan"), 2, "'nan' is not a number"),
        (("power", "--cap", "nan"), 2, "'nan' is not a number"),
        (("serve", "--ttl", "nan"), 2, "'nan' is not a number"),
        (("nonsense",), 2, "nonsense"),
    ],
)
@pytest.mark.usefixtures("running")
def test_errors_have_a_code_and_no_traceback(in_process, arguments, code, says):
    done = in_process(*arguments)
    assert done.returncode == code
    assert says in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--host", "0.0.0.0"), 3, "API key"),
        (("--port", "99999"), 2, "99999"),
        (("--port", "0", "--device", "no-such-device"), 3, "no-such-device"),
    ],
)
@pytest.mark.usefixtures("running")
def test_a_server_that_cannot_start_ends_with_a_code_and_no_traceback(arguments, code, says):
    done = tessera("serve", *arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("running")
def test_a_check_that_fails_is_json_too(in_process):
    in_process("upstreams", "add", "away", "http://127.0.0.1:9")
    done = in_process("upstreams", "check", "away", "--json")
    in_process("upstreams", "remove", "away")
    assert (done.returncode, json.loads(done.stdout)["state"]) == (1, "unreachable")
    assert "away is not well" in done.stderr
    assert in_process("remote", "check", "nobody", "--json").returncode == 3


@pytest.mark.usefixtures("running")
def test_debug_shows_the_traceback():
    assert "Traceback" in tessera("--debug", "chat", "no-such-model", "-p", "x").stderr


def write_slow_model():
    models = Path(os.environ["TESSERA_HOME"]) / "models"
    models.mkdir(parents=True, exist_ok=True)
    # About 10 ms per token: 2 s are enough to interrupt it, also on a busy machine.
    write_shape(models / "slow.gguf", scaled("llama", layers=8, embd=1024, ffn=4096, vocab=600, qtype=Q.Q8_0))


@pytest.mark.parametrize("command", [("chat", "slow"), ("code", "PROJECT", "--model", "slow", "--apply")])
def test_an_interrupted_single_answer_is_told_by_the_exit_code(command, tmp_path):
    """A script must not take half an answer, or half an edit, for the whole."""
    write_slow_model()
    (tmp_path / "notes.py").write_text("print('notes')\n")
    words = [str(tmp_path) if word == "PROJECT" else word for word in command]
    process = subprocess.Popen(
        [sys.executable, "-m", "app", *words, "-t", "0", "--prompt", "Tell me all you know about files."],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **HEARS_INTERRUPTS,
    )
    with process:
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        notes = process.communicate(timeout=90)[1]
    assert process.returncode == 130
    assert "stopped" in notes
    assert "Traceback" not in notes


def test_interrupting_stops_the_answer_and_leaves_no_server():
    write_slow_model()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "chat", "slow", "-t", "0", "--max-tokens", "200", "--no-loop-guard"],
        cwd=ROOT,
        env=dict(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **HEARS_INTERRUPTS,
    )
    with process:
        process.stdin.write("Tell me all you know about files and folders and what to do with them.\n")
        process.stdin.flush()
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.stdin.write("Hello\n")
        process.stdin.close()
        rest, notes = process.stdout.read(), process.stderr.read()
        assert process.wait(90) == 0
    assert "stopped" in notes
    assert "200 tokens," in notes, "the next question is answered, and the first one was not to its end"
    assert notes.count("200 tokens,") == 1
    assert rest.strip()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("settings", "list"), ("models", "list", "--json"), ("models", "list")])
def test_a_full_disk_behind_the_output_is_named(arguments):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "app", *arguments],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=90,
            check=False,
        )
    assert done.returncode == 4
    assert done.stderr.strip() == "tessera: The output cannot be written: No space left on device."


@pytest.mark.skipif(os.name != "posix", reason="closes a stream with the shell")
@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_stop_no_command_and_no_file_takes_their_place(closed, tmp_path):
    environment = {**os.environ, "TESSERA_HOME": str(tmp_path)}
    command = f'"{sys.executable}" -m app models list {closed}'
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("columns", ["0", "", "wide", "40"])
def test_a_terminal_of_no_size_shows_all(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert "spark" in tessera("models", "list").stdout


@pytest.mark.usefixtures("running")
def test_a_key_is_piped_and_its_absence_needs_nobody_to_answer():
    """No password prompt where there is no terminal: its warnings and questions would reach no one."""
    done = tessera("connect", "http://127.0.0.1:1", stdin="")
    assert done.returncode == 4
    assert done.stderr.startswith("tessera: ")
    assert "Warning" not in done.stderr
    done = tessera("upstreams", "key", "desk", stdin="")
    assert done.returncode == 2
    assert "Key is missing: type it, or write it to standard input." in done.stderr
    done = tessera("upstreams", "add", "desk", "http://127.0.0.1:1", "--key", stdin="secret\n")
    assert "desk" in done.stdout
    assert json.loads(tessera("upstreams", "list", "--json").stdout)["upstreams"][0]["key"]


def test_an_address_is_not_taken_for_a_file():
    done = tessera("models", "import", "https://example.org/owner/name")
    assert done.returncode == 3
    assert "https://example.org/owner/name is an address. To download a model: tessera models pull" in done.stderr
