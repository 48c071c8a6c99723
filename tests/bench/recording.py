"""Measurements as data: one line of JSON each, from which docs/benchmarks.md is generated.

A benchmark calls `record` for each figure; the line goes into tests/bench/results/SCRIPT.jsonl. Missed goals are
recorded too. Run `python installers/docs_site.py --pages` afterwards.
"""

import datetime as dt
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = Path(__file__).resolve().parent / "results"
# The fields of every line; `interval` and `note` are optional.
FIELDS: Final = ("date", "commit", "machine", "command", "parameters", "metric", "value", "unit", "n")


def record(
    script: str,
    metric: str,
    value: float,
    unit: str,
    *,
    n: int = 1,
    interval: tuple[float, float] | None = None,
    note: str = "",
    **parameters: Any,
) -> None:
    """Append one figure: the median of `n` runs in `unit`, with its interval if there is one."""
    line = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "machine": machine(),
        "command": f"tests/bench/{script}.py",
        "parameters": parameters,
        "metric": metric,
        "value": value,
        "unit": unit,
        "n": n,
    }
    line |= {"interval": list(interval)} if interval else {}
    line |= {"note": note} if note else {}
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{script}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def machine() -> str:
    """CPU, usable cores and system, without the computer's name."""
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            name = " ".join(re.sub(r"\((?:R|TM)\)", "", line.partition(":")[2]).split())
            break

    return f"{name}, {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores"


def results() -> Iterator[dict[str, Any]]:
    """Every recorded figure, by script and in the order of recording. Raises: ValueError: an invalid line."""
    for path in sorted(FOLDER.glob("*.jsonl")):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            line = json.loads(text)
            missing = [name for name in FIELDS if name not in line]
            if missing:
                raise ValueError(f"{path.name}, line {number}: {', '.join(missing)} missing")
            yield line


def newest() -> list[dict[str, Any]]:
    """The newest figure of each metric, command and parameters, with the one before as `earlier`."""
    found: dict[str, dict[str, Any]] = {}
    for line in results():
        key = json.dumps([line["command"], line["metric"], line["parameters"]], sort_keys=True)
        if key in found:
            line["earlier"] = found[key]["value"]
        found[key] = line
    return list(found.values())


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
