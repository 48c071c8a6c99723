"""Measures the cost of growing a context: time and peak memory of three ways to move the computed states.

    python tests/bench/growing_context.py MODEL.gguf [--tokens 8192] [--to 32768]

One prompt of 512 tokens is computed and its state put into as many sequences as make up `--tokens`: that fills the
cells without hours of prefill. Each way runs in a process of its own. Results: docs/adr/0031-growing-contexts.md.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.bench.recording import record

WAYS = ("main memory", "file", "both contexts")
PROMPT = 512


def peak_bytes() -> int:
    """Peak memory of this process since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def reset_peak() -> None:
    """Reset the peak."""
    Path("/proc/self/clear_refs").write_text("5")


def held_bytes() -> int:
    """What this process holds now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def run(way: str, path: str, tokens: int, to: int) -> None:
    """Fill the cells, grow, and print time and memory."""
    sys.path.insert(0, str(ROOT))
    from engine.runner.llama.cache.resize import resize
    from engine.runner.llama.cache.state_buffer import pointer, state_buffer
    from engine.runner.llama.native import model as llama_model
    from engine.runner.llama.native.batch import Batch
    from engine.runner.llama.native.llama_api import start_backends
    from engine.runner.protocol import LoadSettings

    count = tokens // PROMPT
    settings = LoadSettings(path=path, n_ctx=tokens, kv_cells=tokens, n_parallel=max(1, count // 2), n_threads=2)
    api = start_backends((), None, ())
    loaded = llama_model.load(api, settings, lambda _: True)
    batch = Batch(loaded)
    batch.add_prompt([5 + i % 200 for i in range(PROMPT)], 0, 0, last=True)
    assert batch.decode() == 0
    size = api.llama_state_seq_get_size(loaded.context, 0)
    state = state_buffer(size)
    api.llama_state_seq_get_data(loaded.context, pointer(state), size, 0)
    for seq_id in range(1, count):
        assert api.llama_state_seq_set_data(loaded.context, pointer(state), size, seq_id)
    reset_peak()
    before, begun = held_bytes(), time.monotonic()
    if way == "both contexts":
        old = loaded.context
        loaded.settings = LoadSettings(
            path=path, n_ctx=to, kv_cells=to, n_parallel=settings.n_parallel, n_threads=2
        )
        loaded.kv_cells = to
        llama_model.make_context(loaded)
        whole = state_buffer(api.llama_state_get_size(old))
        written = api.llama_state_get_data(old, pointer(whole), len(whole))
        assert api.llama_state_set_data(loaded.context, pointer(whole), written) == written
        api.llama_free(old)
    else:
        resize(loaded, to, to, through_disk=way == "file")
    seconds = time.monotonic() - begun
    more = (peak_bytes() - before) / 1e6
    at = {"model": Path(path).stem, "state": f"{count * size / 1e6:.0f} MB", "way": way}
    record("growing_context", "time to grow", round(seconds, 2), "s", **at)
    record("growing_context", "peak memory above the weights", round(more), "MB", **at)
    print(f"{way:15} {seconds * 1000:8.0f} ms  peak {more:+8.0f} MB  state {count * size / 1e6:6.0f} MB")


def main() -> None:
    """One process for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--to", type=int, default=32768)
    parser.add_argument("--way", choices=WAYS)
    given = parser.parse_args()
    if given.way:
        run(given.way, given.model, given.tokens, given.to)
        return
    for way in WAYS:
        same = [given.model, "--tokens", str(given.tokens), "--to", str(given.to), "--way", way]
        subprocess.run([sys.executable, __file__, *same], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
