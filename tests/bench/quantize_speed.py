"""Rounding speed and memory against llama-quantize on the same file, mix and threads.

python tests/bench/quantize_speed.py SOURCE.gguf LLAMA_QUANTIZE [MIX] [THREADS]
"""

import os
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


def main(source: str, tool: str, mix: str = "Q4_K_M", threads: str = "2") -> None:
    with TemporaryDirectory(dir=Path(source).parent) as scratch:
        for round_ in range(2):
            ours = run([sys.executable, "-c", OURS, source, f"{scratch}/a{round_}.gguf", mix, threads])
            theirs = run([tool, source, f"{scratch}/b{round_}.gguf", mix, threads])
            print(f"ours {ours[0]:.1f} s {ours[1]:.0f} MiB, theirs {theirs[0]:.1f} s {theirs[1]:.0f} MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
