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
        (("serve", "--host", "0.0.0.0"), 3, "API key"),
        (("serve", "--port", "99999"), 2, "99999"),
        (("serve", "--port", "0", "--device", "no-such-device"), 3, "no-such-device"),
        (("launch", "claude", "--model", "no-such-model"), 3, "no-such-model"),
        (("code", "docs", "-m", "no-such-model", "-p", "x"), 3, "no-such-model"),
        (("jobs", "cancel", "no-such-job"), 3, "no-such-job"),
        (("tools", "remove", "no-such-tool"), 3, "no-such-tool"),
        (("nonsense",), 2, "nonsense"),
    ],
)
@pytest.mark.usefixtures("running")
def test_errors_have_a_code_and_no_traceback(arguments, code, says):
    done = tessera(*arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("running")
def test_debug_shows_the_traceback():
    assert "Traceback" in tessera("--debug", "chat", "no-such-model", "-p", "x").stderr


def test_interrupting_stops_the_answer_and_leaves_no_server():
    models = Path(os.environ["TESSERA_HOME"]) / "models"
    models.mkdir(parents=True, exist_ok=True)
    # About 10 ms per token: 2 s are enough to interrupt it, also on a busy machine.
    write_shape(models / "slow.gguf", scaled("llama", layers=8, embd=1024, ffn=4096, vocab=600, qtype=Q.Q8_0))
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
