"""The calculator and the file reader: their answers, and what they never disclose."""

import time
from pathlib import Path

import pytest

from app.tools.builtin import CALCULATOR, FILES, MEMORY, SOURCES, WEB, Calculator, FileReader
from app.tools.calculate_child import Refused, evaluate
from app.tools.catalogue import open_sources
from app.tools.consent import ConsentStore, ToolConsent
from app.tools.memory import MemoryTool
from app.tools.toolset import RunningServers
from app.tools.web import Web


def test_each_built_in_tool_is_listed_with_its_source(tmp_path):
    sources = {
        CALCULATOR: Calculator(),
        FILES: FileReader((tmp_path,)),
        WEB: Web("https://searx.example.org"),
        MEMORY: MemoryTool(None, None),
    }
    assert {spec.name: name for name, source in sources.items() for spec in source.specs} == SOURCES


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("2 + 3 * 4", "14"),
        ("2**100", str(2**100)),
        ("0.1 + 0.2", "0.3"),
        ("sqrt(2)", "1.4142135623731"),
        ("a = 3; b = 4; sqrt(a^2 + b^2)", "5"),
        ("mean([x * 2 for x in range(5) if x > 1])", "6"),
        ("5 km to miles", "3.10685596119 miles"),
        ("3 kWh / (2 hour)", "1500 m^2*kg*s^-3"),
        ("3 kWh / (2 hour) to W", "1500 W"),
        ("20 MiB to kB", "20971.52 kB"),
        ("100 km / (2 h) to mph", "31.0685596119 mph"),
        ("sum([1 m, 20 cm]) to m", "1.2 m"),
        ("c_to_f(100)", "212"),
        ("1e3 + 1", "1001"),
        ("7 if 3 > 2 else 8", "7"),
    ],
)
def test_what_is_asked_is_worked_out(code, answer):
    assert evaluate(code).startswith(answer) if "sqrt(2)" in code else evaluate(code) in {answer, f"{answer}.0"}


@pytest.mark.parametrize(
    "code",
    [
        "__import__('os')", "().__class__", "open('/etc/passwd')", "'x'.join", "import os", "lambda: 1", "f'{1}'",
        "x", "5 km to kg", "1 m + 1 s", "print(1)", "[a for a, b in c]", "while True: pass", "10**1000000",
    ],
)  # fmt: skip
def test_nothing_else_is_there(code):
    with pytest.raises((Refused, SyntaxError, TypeError)):
        evaluate(code)


@pytest.mark.process
def test_the_child_is_bounded_in_time_and_memory_and_always_answers():
    calculator = Calculator()
    assert calculator.call("calculate", {"expression": "6*7"}).text == "42"
    begun = time.monotonic()
    for code in (
        "sum(range(10**12))",
        "list(range(10**9))",
        "factorial(10**8)",
        "9**99999**3",
        "1/0",
        "(" * 5000,
        "",
    ):
        assert not calculator.call("calculate", {"expression": code}).ok, code
    assert not calculator.call("calculate", {"expression": 5}).ok
    assert time.monotonic() - begun < 100


def test_files_are_read_in_the_allowed_folders_only(tmp_path):
    root = tmp_path / "allowed"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("\n".join(f"line {n}" for n in range(1, 1001)))
    (root / ".env").write_text("KEY=1")
    (tmp_path / "secret.txt").write_text("SECRET")
    (root / "out").symlink_to(tmp_path / "secret.txt")
    files = FileReader([root])
    assert files.call("list_folder", {}).text.splitlines() == ["a.txt", "out", "sub/"]
    text = files.call("read_file", {"path": "a.txt"}).text
    assert text.startswith("line 1\n")
    assert text.endswith("[600 more lines, from line 401 on]")
    assert files.call("read_file", {"path": str(root / "a.txt"), "first": 1000}).text == "line 1000"
    (root / "sub" / "b.txt").write_text("x\n" * 401)
    assert files.call("read_file", {"path": "sub/b.txt"}).text.endswith("[1 more lines, from line 401 on]")
    outside = ("../secret.txt", str(tmp_path / "secret.txt"), "out", ".env", "sub/../../secret.txt", "~/x", "\0", 3)
    for path in (*outside, "missing.txt", "sub"):
        outcome = files.call("read_file", {"path": path})
        assert not outcome.ok, path
        assert "SECRET" not in outcome.text
        assert "KEY" not in outcome.text


def test_what_is_built_in_is_opened_by_its_name_and_the_home_folder_is_never_allowed(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    consent = ToolConsent(ConsentStore(), lambda _: "no")
    names = ("tessera:calculator", "tessera:files", "gone")
    for above in (tmp_path.parent, Path("/")):  # a folder above it would include it
        assert open_sources(names[:2], above, RunningServers(), consent)[0][1].specs == ()
    sources, problems = open_sources(names, tmp_path, RunningServers(), consent)
    assert [source.name for source in sources] == ["tessera:calculator", "tessera:files"]
    assert sources[1].specs == ()
    assert len(problems) == 2
    (tmp_path / "project").mkdir()
    sources, problems = open_sources(names[:2], tmp_path / "project", RunningServers(), consent)
    assert len(sources[1].specs) == 2
    assert problems == []
