"""The order of the whole run."""

from pathlib import Path

from order import APART, SECONDS

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_with_a_duration_is_there():
    assert [file for file in sorted(SECONDS) if not (ROOT / file).is_file()] == []


def test_files_whose_tests_run_apart_are_among_the_long_ones():
    assert SECONDS.keys() >= APART
