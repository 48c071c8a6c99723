"""Speed of quantization: rounding compared with llama-quantize, or whole jobs of each tier by phase.

python tests/bench/quantize_speed.py SOURCE.gguf LLAMA_QUANTIZE [MIX] [THREADS]
python tests/bench/quantize_speed.py --tiers SOURCE.gguf BUDGET_BYTES CHECKOUT TIER...

With --tiers, `tessera quantize` of a checkout of the project makes the file, with the comparison. Nothing is known
of the model before each job. Seconds of processors (all processes, user and system) are recorded: they can be
compared on a busy machine, seconds on the clock cannot.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
OURS = """
import sys
from pathlib import Path
from quantize.files.gguf_file import read_gguf
from quantize.plan.speed import model_spec
from quantize.plan.llama_cpp_presets import stock_types
from quantize.plan.llama_cpp_preset_rules import MIXES
from quantize.job.write_model import WriteRequest, write_model
source, out, mix, threads = sys.argv[1:]
types = stock_types(model_spec(read_gguf(source)), mix, has_imatrix=False)
types = {n: q.name for n, q in types.items()}
write_model(WriteRequest(source=Path(source), out=Path(out), types=types, file_type=MIXES[mix].ftype,
            threads=int(threads)), lambda *_: None)
"""


def run(command: list[str]) -> tuple[float, float]:
    """Seconds, and the peak of resident memory in MiB."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, status
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def against_llama_quantize(source: str, tool: str, mix: str = "Q4_K_M", threads: str = "2") -> None:
    with TemporaryDirectory(dir=Path(source).parent) as scratch:
        for round_ in range(2):
            ours = run([sys.executable, "-c", OURS, source, f"{scratch}/a{round_}.gguf", mix, threads])
            theirs = run([tool, source, f"{scratch}/b{round_}.gguf", mix, threads])
            print(f"ours {ours[0]:.1f} s {ours[1]:.0f} MiB, theirs {theirs[0]:.1f} s {theirs[1]:.0f} MiB")


def processor_seconds() -> float:
    """Of this process and of all children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usages)


def by_tier(source: str, budget: str, checkout: str, *tiers: str) -> None:
    sys.path.insert(0, str(ROOT))
    from tests.bench.recording import record

    commit = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    for tier in tiers:
        with TemporaryDirectory(dir=Path(source).parent) as scratch:
            out = Path(scratch) / "out.gguf"
            words = ("quantize", source, out, "--budget", f"{budget}B", "--tier", tier, "--threads", 1, "--yes")
            started, before = time.monotonic(), processor_seconds()
            environment = {**os.environ, "TESSERA_HOME": f"{scratch}/home"}
            subprocess.run(
                [sys.executable, "-m", "app", *map(str, words)], cwd=checkout, env=environment, check=True,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            took, processors = time.monotonic() - started, processor_seconds() - before
            report = json.loads(out.with_suffix(".tessera.json").read_text("utf-8"))
            phases = {name: round(seconds, 1) for name, seconds in report["seconds"].items()}
            print(
                f"{commit} {tier}: {processors:.0f} s of processors, {took:.0f} s on the clock, {phases}",
                flush=True,
            )
            record(
                "quantize_speed", "seconds of processors", round(processors, 1), "s",
                model=Path(source).stem, bytes=int(budget), tier=tier, quantizer=commit, threads=1,
            )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "--tiers":
        by_tier(*sys.argv[2:])
    else:
        against_llama_quantize(*sys.argv[1:])
