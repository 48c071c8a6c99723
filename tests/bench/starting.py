"""Measures the time from the start of a process to the first token: Tessera and llama-server of the same commit.

    python tests/bench/starting.py MODEL.gguf --tools FOLDER [--rounds 5]
    python tests/bench/starting.py --only starts     CPU seconds of `--help`, server and window, recorded

FOLDER contains llama-server (see against_llama_server.py). The sides alternate. Every round starts with new data
folders; the model file stays in the page cache, and the program is compiled to bytecode as in an installation.
Both elapsed and CPU seconds are printed; on a busy machine only CPU seconds and ratios are reliable. `chat -p` is
measured alone and with a running server.
"""

import argparse
import os
import statistics
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
from tests.support.servers import RunningServer

CONTEXT = 8192
PROMPT = "How do I use tar?"


def spent(pid: int) -> float:
    """Processor seconds of a process and all that it started."""
    process = psutil.Process(pid)
    times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)


def named(model: Path) -> str:
    """The name in Tessera's library, which no included model has."""
    return f"bench-{model.stem}"


def compile_program(model: Path, folder: Path) -> None:
    """Let all our processes use compiled Python files, which a first start writes: a shell may forbid to write any.

    Without them a start compiles some 600 files, which no installed program does.
    """
    os.environ.update(PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(folder / "compiled"))
    ours(model, folder / "first")
    chat(named(model), home_with(model, folder / "second"))
    helped()


def home_with(model: Path, folder: Path) -> Path:
    """New folders with the model in them."""
    (folder / "models").mkdir(parents=True)
    (folder / "models" / f"{named(model)}.gguf").symlink_to(model)
    return folder


def ours(model: Path, folder: Path, *arguments: str) -> tuple[float, float]:
    """Seconds from the start of `tessera serve --model` to a first token, and CPU seconds."""
    started = time.perf_counter()
    server = RunningServer(home_with(model, folder), "--ctx", str(CONTEXT), "--model", named(model), *arguments)
    try:
        complete(server.url, named(model), PROMPT, 1)
        return time.perf_counter() - started, spent(server.process.pid)
    finally:
        server.stop()


def theirs(model: Path, tools: Path) -> tuple[float, float]:
    """The same for llama-server."""
    started = time.perf_counter()
    server = LlamaServer(tools, str(model), threads=2, context=CONTEXT, parallel=16)
    try:
        complete(server.url, model.name, PROMPT, 1)
        return time.perf_counter() - started, spent(server.process.pid)
    finally:
        server.stop()


def chat(model: str, home: Path) -> float:
    """Seconds from the command to the first character of its answer."""
    command = [sys.executable, "-m", "app", "chat", model, "-p", PROMPT, "--max-tokens", "2"]
    started = time.perf_counter()
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "TESSERA_HOME": str(home)}, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.read(1)
        return time.perf_counter() - started


def helped() -> float:
    """Seconds of `tessera --help`."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "app", "--help"], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - started


def resident(model: Path, folder: Path) -> float:
    """Seconds of a terminal's command to its first character, where a server has the model loaded."""
    server = RunningServer(home_with(model, folder), "--ctx", str(CONTEXT))
    try:
        complete(server.url, named(model), PROMPT, 1)
        time.sleep(3)
        return statistics.median(chat(named(model), folder) for _ in range(3))
    finally:
        server.stop()


def start(command: list[str], home: Path, until: bytes = b"") -> float:
    """Processor seconds of a command until it ends, or until it writes `until`."""
    env = {**os.environ, "TESSERA_HOME": str(home), "PYTHONPATH": str(ROOT), "QT_QPA_PLATFORM": "offscreen"}
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:  # fmt: skip
        assert process.stdout is not None
        if until:
            for line in process.stdout:
                if until in line:
                    break
            used = psutil.Process(process.pid).cpu_times()
            process.terminate()
            return used.user + used.system
        process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        return usage.ru_utime + usage.ru_stime


def starts(rounds: int) -> None:
    """Record the starts of the three programs, without a model. The first round compiles and does not count."""
    from tests.bench.gui_latency import START

    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        os.environ.update(PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=f"{name}/compiled")
        program = [sys.executable, "-m", "app"]
        for i in range(rounds + 1):
            home = Path(name) / str(i)
            measured = {
                "--help": start([*program, "--help"], home),
                "server": start([*program, "serve", "--port", "0"], home, b"serves at"),
                "window": start([sys.executable, "-c", START.format(root=str(ROOT))], home),
            }
            for what, used in measured.items() if i else ():
                seconds.setdefault(what, []).append(used)
    for what, values in seconds.items():
        median = round(statistics.median(values), 3)
        print(f"{what}: {median} processor seconds ({min(values):.3f} to {max(values):.3f})")
        spread = (round(min(values), 3), round(max(values), 3))
        record("starting", "Processor time of a start", median, "s", n=rounds, interval=spread, program=what)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--tools", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["servers", "terminal", "starts"], help="a part of it")
    options = parser.parse_args()
    if options.only == "starts":
        starts(options.rounds)
        return
    if options.model is None or options.tools is None:
        parser.error("give MODEL.gguf and --tools FOLDER")
    model = options.model.resolve()
    wall: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        compile_program(model, Path(name))
        for i in range(options.rounds):
            folder = Path(name) / str(i)
            measured = {
                "llama-server": lambda: theirs(model, options.tools),
                "ours": lambda f=folder: ours(model, f / "a"),
                "ours --parallel 16": lambda f=folder: ours(model, f / "b", "--parallel", "16"),
            }
            for side in list(measured)[:: -1 if i % 2 else 1] if options.only != "terminal" else ():
                seconds, processor = measured[side]()
                wall.setdefault(side, []).append(seconds)
                cpu.setdefault(side, []).append(processor)
            if options.only == "servers":
                continue
            wall.setdefault("cold chat -p, the bundled toy", []).append(chat("spark", folder / "c"))
            wall.setdefault("cold chat -p", []).append(chat(named(model), home_with(model, folder / "d")))
            wall.setdefault("chat -p beside a server", []).append(resident(model, folder / "e"))
            wall.setdefault("--help", []).append(helped())
    for what, values in wall.items():
        line = f"{what}: {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"
        if what in cpu:
            line += f", processors {statistics.median(cpu[what]):.2f} s"
        if what.startswith("ours"):
            ratios = [a / b for a, b in zip(values, wall["llama-server"], strict=True)]
            line += f", ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            both = [a / b for a, b in zip(cpu[what], cpu["llama-server"], strict=True)]
            line += f", of processors {statistics.median(both):.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
