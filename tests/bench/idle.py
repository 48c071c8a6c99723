"""Measures the idle program: wake-ups, CPU time and memory of its processes (Linux).

    python tests/bench/idle.py MODEL.gguf [--seconds 60] [--window] [--tools FOLDER] [--record]

A server loads the model, answers once and is left alone. Counted are voluntary context switches and the time on a
processor of every thread. With --tools the llama-server in FOLDER does the same; with --window a window is opened
next to our server. `PrivDirty` is memory that only this process holds.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.clients import complete
from tests.bench.recording import record
from tests.bench.rival import LlamaServer
from tests.bench.starting import home_with, named
from tests.support.servers import RunningServer

SETTLED_S = 20  # imports and other work after the first answer
CONTEXT = 8192


def threads(pids: list[int]) -> dict[tuple[int, str], tuple[int, int]]:
    """Voluntary switches and CPU nanoseconds of each thread."""
    found = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            status = (task / "status").read_text()
            switches = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
            assert switches is not None
            found[pid, task.name] = int(switches[1]), int((task / "schedstat").read_text().split()[0])
    return found


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and all its descendants."""
    return [process, *process.children(recursive=True)]


# By the module that a process runs.
ROLES = {
    "engine.runner.main": "runner",
    "engine.chat.render_child": "templates",
    "engine.chat.grammar_check_child": "grammars",
}


def role(process: psutil.Process, what: str) -> str:
    """The work of a process; `what` for the one that was started first."""
    return next((ROLES[word] for word in process.cmdline() if word in ROLES), what)


def measure(what: str, pid: int, seconds: float, *, keep: bool, model: str) -> None:
    """Print and record what a process and its children do in `seconds`, and their memory."""
    processes = family(psutil.Process(pid))
    before = threads([p.pid for p in processes])
    time.sleep(seconds)
    after = threads([p.pid for p in processes])
    shared = before.keys() & after.keys()
    both = [(after[key][0] - before[key][0], after[key][1] - before[key][1]) for key in shared]
    wakes = sum(woken for woken, _ in both) / seconds
    percent = sum(spent for _, spent in both) / seconds / 1e7
    figures = [("Idle wake-ups", what, wakes, "1/s"), ("Idle processor time", what, percent, "% of a core")]
    for process in processes:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB", rollup, re.MULTILINE))
        own = int(sizes["Private_Dirty"]) / 1e3
        resident = int(sizes["Rss"]) / 1e3
        figures.append(("Idle memory", role(process, what), resident, "MB"))
        print(f"{what}: {figures[-1][1]} {resident:.0f} MB, PrivDirty {own:.0f} MB")
    print(f"{what}: {wakes:.1f} wake-ups/s, {percent:.3f} % of a core", flush=True)
    for name, part, value, unit in figures if keep else ():
        record("idle", name, round(value, 2), unit, part=part, seconds=seconds, model=model)


def main() -> None:
    """Measure the sides one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tools", type=Path)
    parser.add_argument("--window", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    model, keep = options.model.resolve(), options.record
    with tempfile.TemporaryDirectory() as name:
        home = home_with(model, Path(name) / "home")
        server = RunningServer(home, "--ctx", str(CONTEXT), "--model", named(model))
        try:
            complete(server.url, named(model), "Hello", 4)
            time.sleep(SETTLED_S)
            measure("server with children", server.process.pid, options.seconds, keep=keep, model=model.name)
            if options.window:
                window = subprocess.Popen(
                    [sys.executable, "-m", "app", "window"],
                    cwd=ROOT,
                    env={**os.environ, "TESSERA_HOME": str(home), "QT_QPA_PLATFORM": "offscreen"},
                )
                try:
                    time.sleep(SETTLED_S)
                    measure("window", window.pid, options.seconds, keep=keep, model=model.name)
                finally:
                    window.terminate()
                    window.wait(20)
        finally:
            server.stop()
    if options.tools:
        rival = LlamaServer(options.tools, str(model), threads=2, context=CONTEXT, parallel=4)
        try:
            complete(rival.url, model.name, "Hello", 4)
            time.sleep(SETTLED_S)
            measure("llama-server", rival.process.pid, options.seconds, keep=keep, model=model.name)
        finally:
            rival.stop()


if __name__ == "__main__":
    main()
