"""Changes the program in one place at a time and reports which changes no test notices.

    python tests/optin/mutants.py WORK [--count 96] [--seed 1] [--groups tests/unit tests/integration/engine]

WORK is a folder outside the repository. It gets a clone of HEAD, the lines that each test executes, and
`results.jsonl` with one line per mutant: file, line, change, result (killed, survived, timeout, uncovered) and the
test that failed. A second call continues where the first one stopped. Needs the package coverage. Coverage is
taken in one run of the groups and in pytest's own process: lines that only child processes execute are uncovered.
For each mutant those tests run that execute its line (for code outside functions: its file), the quickest first,
until one fails or `BOUND_S` of CPU are used. Mutants are spread evenly over AREAS.

Latest (2026-11-27, tests that import the module or have its name): 15 of another sample, killed 8, survived 7; all
changes of lines in six functions in which mutants had survived before. 13 gaps have a test. What is left changes
nothing that can be seen, such as the flag `strict` of a `zip`, or a comparison of two speeds that are never equal.

The last 64 mutants (2026-11-26, coverage of unit tests): killed 21, survived 12, not executed 31, nine of these not
valid. Of the 12 one was a defect, five are killed by new tests, two by tests that were not chosen, one by a simpler
condition, and three have no effect.

Before (2026-11-26): 71 mutants in functions, tried with the test files that import the module: unit tests of
the quick run, then up to two files of integration or end-to-end tests, so less than all tests. Killed, survived and
not executed by area: placement 7, 4, 3; plan 4, 4, 0; chat 6, 2, 5; protocols 5, 3, 5; stores 6, 2, 1; guards 5, 4,
5. Six survivors and one that was not executed were promises without a test, and have one now. Four survivors are
killed by tests that were not among those chosen. The others change nothing that can be seen, or were not examined.

Earlier (2026-11-25, `--count 160 --groups tests/unit`, functions only, at most 40 s of tests each): 138
mutants, 46 of them in lines that no unit test executes. Of the other 92, unit tests killed 61. Killed, survived
and uncovered by area: placement 10, 12, 4; quantize 14, 6, 4; chat 15, 8, 3; protocols 3, 1, 18; stores 14, 3,
7; guards 5, 1, 10. Six survivors were promises without a test and have one now. Of the other 25, some change
nothing that can be seen, some are noticed by integration tests (a recipe of a model with experts, the first
token of a prompt), and the rest were not examined.
"""

import argparse
import ast
import itertools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 60  # of CPU time, so that a busy machine changes nothing
CLOCK_S = 600.0
GROUPS = ("tests/unit", "tests/integration/engine", "tests/integration/app")
AREAS = {
    "placement": ("engine/placement/", "devices/memory_ledger"),
    "quantize": ("quantize/plan/", "quantize/gptq/"),
    "chat": ("engine/chat/",),
    "protocols": (
        *(f"engine/server/{part}/" for part in ("openai", "anthropic", "ollama", "responses", "llama_server")),
        "engine/upstreams/",
    ),
    "stores": (
        "engine/core/json_store",
        "engine/server/response_store",
        "engine/jobs/",
        "engine/library/",
        "app/db/",
    ),
    "guards": (
        *(f"engine/server/{part}" for part in ("auth", "body", "guard", "json_bounds", "origin_check")),
        *("app/code/", "app/tools/", "devices/landlock", "devices/syscall_filter"),
    ),
}  # prefixes of paths
SWAPPED = ["Lt", "LtE", "Gt", "GtE", "Eq", "NotEq", "Is", "IsNot", "In", "NotIn", "Add", "Sub", "And", "Or"]
PAIRS = list(zip(SWAPPED[::2], SWAPPED[1::2], strict=True))
NAMES = {**dict(PAIRS), **{b: a for a, b in PAIRS}, "Mult": "Add", "Div": "Mult", "FloorDiv": "Mult"}
OTHER = {getattr(ast, one): getattr(ast, other) for one, other in NAMES.items()}
NO_BEHAVIOUR = re.compile(r"\b(log|_log|logger)\.|cast\(|TypeVar\(")
RESULTS = {0: "survived", -signal.SIGXCPU: "timeout", -signal.SIGKILL: "timeout"}  # by exit code; else killed


def pytest_runtest_protocol(item: pytest.Item) -> None:
    """As a plugin of pytest, this module records coverage by test, and the seconds of each."""
    import coverage

    if (measuring := coverage.Coverage.current()) is not None:
        measuring.switch_context(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed and (target := os.environ.get("MUTANTS_SECONDS")):
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, round(report.duration, 3)]) + "\n")


def changed(node: ast.AST) -> ast.AST | None:
    """The node with a changed meaning, or None."""
    other: ast.AST | None = None
    match node:
        case ast.Compare(left, [first, *more], compared) if type(first) in OTHER:
            other = ast.Compare(left, [OTHER[type(first)](), *more], compared)
        case ast.BoolOp(op, values):
            other = ast.BoolOp(OTHER[type(op)](), values)
        case ast.BinOp(left, op, right) if type(op) in OTHER and not isinstance(left, ast.Constant):
            other = ast.BinOp(left, OTHER[type(op)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            other = operand
        case ast.Constant(bool(value)):
            other = ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            other = ast.Constant(value + 1)
        case ast.Expr(ast.Call()):
            other = ast.Pass()
    return other


def mutants(file: str, text: str) -> list[dict[str, Any]]:
    """All changes of one file, by their position in its bytes."""
    tree, raw = ast.parse(text), text.encode()
    nodes = list(ast.walk(tree))
    skipped = {id(n) for f in nodes if isinstance(f, ast.JoinedStr) for n in ast.walk(f)}
    # `frozen=True` and the like of a class change nothing that a sound program does.
    skipped |= {id(n) for c in nodes if isinstance(c, ast.ClassDef) for k in c.keywords for n in ast.walk(k)}
    functions = [f for f in nodes if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(n) for f in functions for statement in f.body for n in ast.walk(statement)}
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in nodes:
        if id(node) in skipped or (other := changed(node)) is None:
            continue
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        old, new = raw[begin:end].decode(), ast.unparse(other)
        if not NO_BEHAVIOUR.search(old):
            new = new if isinstance(other, ast.Pass) else f"({new})"
            place = {
                "file": file,
                "line": node.lineno,
                "begin": begin,
                "end": end,
                "in_function": id(node) in inside,
            }
            found.append(place | {"old": old, "new": new})
    return found


def chosen(tree: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """The same mutants for the same seed and tree, alternating between the areas."""
    dice, piles = random.Random(seed), []
    sources = sorted(str(p.relative_to(tree)) for p in tree.rglob("*.py"))
    for area, paths in AREAS.items():
        files = [f for f in sources if f.startswith(paths)]
        pile = [m | {"area": area} for f in files for m in mutants(f, (tree / f).read_text("utf-8"))]
        piles.append(dice.sample(pile, min(len(pile), count)))
    return [pile[i] for i in range(count) for pile in piles if i < len(pile)][:count]


def environment(work: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(work / "tree"), str(work), os.environ.get("PYTHONPATH", "")])
    left_out = ("PYTEST_", "PYTHONDONTWRITEBYTECODE")  # bytecode of the unchanged tree saves each mutant seconds
    return {k: v for k, v in os.environ.items() if not k.startswith(left_out)} | {"PYTHONPATH": path, **more}


def measure(work: Path, groups: list[str]) -> None:
    """One run of each group with the lines that each test executes."""
    (work / "mutants_plugin.py").write_bytes(Path(__file__).read_bytes())
    (work / "coveragerc").write_text(f"[run]\nsource = app,devices,engine,quantize\ndata_file = {work}/part\n")
    for group in groups:
        command = [
            sys.executable,
            "-m",
            "coverage",
            "run",
            "--append",
            f"--rcfile={work}/coveragerc",
            "-m",
            "pytest",
        ]
        command += ["-q", "-n0", "-p", "no:cacheprovider", "-p", "mutants_plugin", "--timeout=0", group]
        told = environment(work, MUTANTS_SECONDS=str(work / "seconds.jsonl"))
        subprocess.run(command, cwd=work / "tree", env=told, check=False)
    (work / "part").rename(work / "coverage.db")


def result_of(mutant: dict[str, Any], work: Path, tests: list[str]) -> dict[str, Any]:
    """The tests' result for the mutant; the file is restored afterwards."""
    path = work / "tree" / mutant["file"]
    sound, times, began = path.read_bytes(), path.stat(), time.monotonic()
    path.write_bytes(sound[: mutant["begin"]] + mutant["new"].encode() + sound[mutant["end"] :])
    (work / "tests.txt").write_text("\n".join(tests))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n0",
        "-p",
        "no:cacheprovider",
        f"@{work / 'tests.txt'}",
    ]
    told = environment(work, PYTHONDONTWRITEBYTECODE="1")
    bounds = {"timeout": CLOCK_S, "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_CPU, (BOUND_S, BOUND_S))}
    try:
        done = subprocess.run(command, cwd=work / "tree", env=told, capture_output=True, text=True, **bounds)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        by = failed[1] if failed else done.stdout[-300:]
        found = {"result": RESULTS.get(done.returncode, "killed"), "by": by if done.returncode else ""}
    except subprocess.TimeoutExpired:
        found = {"result": "timeout"}
    finally:
        path.write_bytes(sound)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return found | {"s": round(time.monotonic() - began, 1), "tests": len(tests)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("work", type=Path)
    options.add_argument("--count", type=int, default=96)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--groups", nargs="+", default=GROUPS)
    given = options.parse_args()
    work = given.work.resolve()
    if not (work / "tree").exists():
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(work / "tree")], check=True)
    if not (work / "coverage.db").exists():
        measure(work, given.groups)
    from coverage import CoverageData

    data = CoverageData(str(work / "coverage.db"))
    data.read()
    seconds = dict(map(json.loads, (work / "seconds.jsonl").read_text().splitlines()))
    results = work / "results.jsonl"
    known = map(json.loads, results.read_text().splitlines() if results.exists() else ())
    done = {(m["file"], m["begin"], m["new"]) for m in known}
    for mutant in chosen(work / "tree", given.count, given.seed):
        if (mutant["file"], mutant["begin"], mutant["new"]) in done:
            continue
        lines = data.contexts_by_lineno(str(work / "tree" / mutant["file"]))
        of = (
            lines.get(mutant["line"], ())
            if mutant["in_function"]
            else [n for names in lines.values() for n in names]
        )
        names = sorted(seconds.keys() & set(of), key=seconds.__getitem__)
        enough = itertools.accumulate(map(seconds.__getitem__, names))
        tests = [name for name, total in zip(names, enough, strict=True) if total < BOUND_S]
        outcome = result_of(mutant, work, tests) if tests else {"result": "uncovered"}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(mutant | outcome) + "\n")


if __name__ == "__main__":
    main()
