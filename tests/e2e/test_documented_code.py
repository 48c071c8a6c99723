"""Every Python block marked as runnable in the docs runs unchanged against a real server and prints something."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
RUNNABLE = re.compile(r"<!-- runnable -->\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:7373"
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for number, block in enumerate(RUNNABLE.findall(page.read_text(encoding="utf-8")), 1)
]


def test_there_are_blocks():
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block, server, capsys):
    assert ADDRESS in block
    exec(compile(block.replace(ADDRESS, server.url), "block", "exec"), {})
    if "finish_reason" not in block:  # otherwise it prints only if the answer ended by itself
        assert capsys.readouterr().out.strip()
