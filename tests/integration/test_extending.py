"""The changes that docs/extending.md shows do what it says, in a copy of the source, and each touches few files."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
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
from engine.chat.events import CallArguments, CallStarted
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
    """The source with all the changes."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", folder)
    # What is compiled goes along, as its sources keep their times; other tests may be compiling at this moment.
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


def test_the_changes_do_what_the_page_says(copy):
    (copy / "tests" / "gui" / "test_extended.py").write_text(IMPORTS + "".join(CHECKS))
    told = run(copy, sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "tests/gui/test_extended.py")
    assert f"{len(CHECKS)} passed" in told


def test_no_other_file_knows_what_was_added(copy):
    """The guards of a whole tree hold: every text has its German one, every field its example and its line."""
    guards = [
        "tests/gui/test_german.py::test_every_text_has_its_german_one_and_none_is_left_over",
        "tests/gui/test_every_control.py::test_every_control_is_pressed_in_a_walk_or_stands_here_with_its_reason",
        "tests/integration/test_request_contract.py::test_every_declared_field_stands_in_an_example",
        "tests/integration/test_parameter_tables.py::test_chat_parameters[max_new_tokens-honoured]",
        "tests/integration/test_parameter_tables.py::test_the_table_has_every_parameter_of_the_official_client_and_of_ours",
    ]
    run(copy, sys.executable, "-m", "pytest", "-q", *guards)
