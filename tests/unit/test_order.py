"""The order of the whole run."""

from pathlib import Path

from tests.support.plugins.order import SECONDS, WITH

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_that_is_named_is_there():
    named = {*SECONDS, *WITH, *WITH.values()}
    assert [file for file in sorted(named) if not (ROOT / file).is_file()] == []
