"""The changes shown in docs/dev/extending.md work in a copy of the source, and each touches few files."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "dev" / "extending.md").read_text("utf-8")
DIFFS = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
CHECKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MOST_FILES = 3
IMPORTS = """
import json
import numpy as np
import pytest
from pydantic import ValidationError
from PySide6.QtWidgets import QLabel
from devices.detect import inventory
from devices.recording import FORMAT, RecordedHost
from engine.chat.types import CallArguments, CallStarted
from engine.chat.tools.dialects import choose
from engine.chat.tools.parser import AnswerParser
from engine.chat.types import ToolDefinition
from engine.server.openai.schemas import ChatRequest
from quantize.ggml_types import BLOCK_SIZES, GgmlType
from quantize.gptq.packing import pack
"""


def run(folder, *command):
    env = {**os.environ, "PYTHONPATH": str(folder)}
    env.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the source with all changes."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", folder)
    # Compiled files are copied because the sources keep their times; other tests may be compiling now.
    left_out = shutil.ignore_patterns("*.pyc.*", "screenshots", "data")
    for part in ("app", "devices", "docs", "engine", "quantize", "tests", "assets/languages"):
        shutil.copytree(ROOT / part, folder / part, ignore=left_out)
    for part in (ROOT / "assets").iterdir():
        if not (folder / "assets" / part.name).exists():
            (folder / "assets" / part.name).symlink_to(part)
    (folder / "tests" / "data").symlink_to(ROOT / "tests" / "data")
    for number, diff in enumerate(DIFFS):
        (folder / f"{number}.diff").write_text(diff)
        run(folder, "git", "apply", "--unsafe-paths", f"{number}.diff")
    return folder


def test_each_change_touches_three_files_at_most():
    assert len(DIFFS) == len(CHECKS) == 5
    for diff in DIFFS:
        assert 1 <= diff.count("\ndiff --git ") + 1 <= MOST_FILES


# Checks that the test suite applies to all texts, controls and fields, applied to the added ones.
GUARDS = """
def test_every_text_has_its_german_one():
    from app.gui.application import texts_of
    from tests.gui.translatable import every_text
    assert every_text() == texts_of("de").keys()

def test_every_control_has_its_walk():
    from tests.gui import test_every_control as walks
    assert walks.unpressed() - (walks.READ | walks.ALSO_CALLED.keys() | walks.CANNOT.keys()) == set()

def test_the_field_stands_in_an_example_and_in_the_table():
    from tests.support.contract_examples import EXAMPLES
    assert [body for bodies in EXAMPLES.values() for body in bodies if "max_new_tokens" in body]
    from pathlib import Path
    assert "\\n| max_new_tokens | `5` | supported |\\n" in Path("docs/api/chat-completions.md").read_text("utf-8")

"""
SERVED = """
import httpx2

def test_the_server_takes_the_field(server):
    body = {"model": "spark", "messages": [{"role": "user", "content": "Hi"}], "max_new_tokens": 1}
    answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body)
    assert answer.json()["usage"]["completion_tokens"] == 1
    assert "max_new_tokens" not in answer.headers.get("x-tessera-ignored", "")
"""


def test_the_changes_do_what_the_page_says_and_no_other_file_knows_of_them(copy):
    files = {"tests/gui/test_extended.py": IMPORTS + "".join(CHECKS) + GUARDS, "tests/e2e/test_served.py": SERVED}
    for name, text in files.items():
        (copy / name).write_text(text)
    told = run(copy, sys.executable, "-m", "pytest", "-q", *files)
    assert f"{len(CHECKS) + 4} passed" in told
