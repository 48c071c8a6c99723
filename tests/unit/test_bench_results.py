"""Recorded measurements are complete, dated lines, and the benchmarks page shows the newest of each."""

import datetime as dt
import json
import re
import subprocess
import sys

import pytest

from tests.bench import recording as results
from tests.bench.table import Clock

# Computes for 0.2 s of CPU time once it has read a line.
CHILD = """
import time
print("ready", flush=True)
input()
while time.process_time() < 0.2:
    pass
print("done", flush=True)
input()
"""


def test_every_recorded_line_is_whole():
    lines = list(results.results())
    assert len(lines) > 20
    for line in lines:
        dt.date.fromisoformat(line["date"])
        assert re.fullmatch(r"[0-9a-f]{7,12}", line["commit"])
        assert isinstance(line["value"], (int, float))
        assert line["n"] >= 1
        assert isinstance(line["parameters"], dict)


@pytest.mark.process
def test_a_figure_is_appended_and_the_newest_comes_with_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    results.record("script", "speed", 2.0, "tok/s", n=3, interval=(1.9, 2.1), model="a")
    results.record("script", "speed", 5.0, "tok/s", model="b")
    results.record("script", "speed", 3.0, "tok/s", model="a", note="goal 4")
    newest = {line["parameters"]["model"]: line for line in results.newest()}
    assert (newest["a"]["value"], newest["a"]["earlier"], newest["a"]["note"]) == (3.0, 2.0, "goal 4")
    assert "earlier" not in newest["b"]
    assert len((tmp_path / "script.jsonl").read_text().splitlines()) == 3


def test_a_line_without_a_field_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    (tmp_path / "script.jsonl").write_text(json.dumps({"metric": "speed", "value": 1}) + "\n")
    with pytest.raises(ValueError, match=r"script.jsonl, line 1: date, commit"):
        list(results.results())


def test_every_difference_from_other_projects_tests_has_a_reason():
    path = results.ROOT / "tests" / "optin" / "conformance" / "results.jsonl"
    lines = [json.loads(text) for text in path.read_text("utf-8").splitlines()]
    assert len({line["suite"] for line in lines}) >= 6
    for line in lines:
        dt.date.fromisoformat(line["date"])
        assert re.fullmatch(r"[0-9a-f]{7,12}", line["commit"])
        assert line["passed"] + sum(line["differs"].values()) == line["checked"], line["suite"]
        assert all(line["differs"])


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the clock of another process is Linux's")
def test_the_clock_of_a_side_counts_children_of_its_process():
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as side:
        assert side.stdout.readline() == "ready\n"
        clock = Clock(side.pid, processor=True)
        before = clock()
        side.stdin.write("\n")
        assert side.stdout.readline() == "done\n"
        after = clock()
        side.stdin.write("\n")
    assert after - before > 0.1
    assert clock() == after
