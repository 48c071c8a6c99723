"""Predicted and measured memory of long contexts, with every cell in use.

    python tests/bench/long_memory.py MODEL.gguf [--cases 65536:f16 131072:q8_0] [--ubatch 64] [--start 8192]
        [--prompt 512]

One prompt of `--prompt` tokens is computed and its state put into as many sequences as fill the context: that
fills the cells without hours of prefill. Then one step of `--ubatch` rows reads all of them. Each case runs in a
process of its own. It needs the memory that it measures: with an 8B shape 15 GB for 64k and F16, as much for 128k
and 8 bits.
With `--start` the context has this size at first, and doubles whenever it is full: measured is the peak.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.bench.growing_context import peak_bytes
from tests.bench.recording import record

MOST_SEQUENCES = 256


def run(path: str, n_ctx: int, kv_type: str, ubatch: int, start: int, prompt: int) -> None:
    """Predict, load, fill, read, and record the error."""
    from devices.detect import inventory
    from devices.host_real import RealHost
    from engine.core.types import Constraint
    from engine.placement.dry_run import dry_run
    from engine.placement.estimate import estimate
    from engine.placement.placer import read_shape
    from engine.runner.generation.grammar_mask import ConstraintCompiler
    from engine.runner.llama.cache.resize import resize
    from engine.runner.llama.cache.state_buffer import pointer, state_buffer
    from engine.runner.llama.native import model as llama_model
    from engine.runner.llama.native.batch import Batch
    from engine.runner.llama.native.llama_api import start_backends
    from engine.runner.llama.native.vocabulary import LlamaVocabulary
    from engine.runner.protocol import LoadSettings

    count = min(n_ctx // prompt, MOST_SEQUENCES) - 1
    settings = LoadSettings(
        path=path, n_ctx=n_ctx, kv_cells=n_ctx, n_parallel=max(1, (count + 1) // 2), n_threads=2, type_k=kv_type,
        type_v=kv_type, flash_attn="on", n_ubatch=ubatch, repack=False,
    )  # fmt: skip
    isa = frozenset(inventory(RealHost()).devices[0].isa)
    shape = read_shape(path)
    usual = msgspec.structs.replace(settings, n_parallel=4)  # so many sequences only fill the cells
    formulas = estimate(shape, usual, isa)
    asked = estimate(shape, usual, isa, dry_run=dry_run(usual))
    api = start_backends((), None, ())
    small = msgspec.structs.replace(settings, n_ctx=start, kv_cells=start, max_ctx=n_ctx) if start else settings
    loaded = llama_model.load(api, small, lambda _: True)
    vocabulary = LlamaVocabulary(api, loaded.vocab)
    ConstraintCompiler(vocabulary).compile(Constraint(kind="regex", source="x"))
    batch = Batch(loaded)
    batch.add_prompt([5 + i % 200 for i in range(prompt)], 0, 0, last=True)
    assert batch.decode() == 0
    size = api.llama_state_seq_get_size(loaded.context, 0)
    state = state_buffer(size)
    api.llama_state_seq_get_data(loaded.context, pointer(state), size, 0)
    for seq_id in range(1, count):
        if (seq_id + 1) * prompt > loaded.kv_cells:
            resize(loaded, 2 * loaded.kv_cells, 2 * loaded.kv_cells)
        assert api.llama_state_seq_set_data(loaded.context, pointer(state), size, seq_id)
    del state
    batch = Batch(loaded)
    batch.add_prompt([7] * ubatch, prompt, 0, last=True)
    assert batch.decode() == 0
    held = peak_bytes()
    cells = count * prompt + ubatch
    kv = asked.part_bytes("kv")
    expected = asked.resident_bytes - kv + kv * cells // n_ctx
    at = {"model": Path(path).stem, "context": n_ctx, "cache": kv_type, "ubatch": ubatch, "cells in use": cells}
    at |= {"grows from": start} if start else {}
    for basis, need in (("formulas", formulas.resident_bytes), ("dry run", asked.resident_bytes)):
        error = 100 * (need - asked.resident_bytes + expected - held) / held
        record("long_memory", "error of predicted memory", round(error, 2), "%", **at, basis=basis)
        print(
            f"{n_ctx:7} {kv_type:5} {basis:8} {need / 1e6:7.0f} MB, resident {held / 1e6:7.0f} MB, {error:+.2f} %"
        )


def main() -> None:
    """One process for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--cases", nargs="+", default=["65536:f16", "131072:q8_0"])
    parser.add_argument("--ubatch", type=int, default=64)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--prompt", type=int, default=512, help="at least a 256th of the context")
    parser.add_argument("--here", action="store_true", help="measure the only case in this process")
    given = parser.parse_args()
    for case in given.cases:
        n_ctx, _, kv_type = case.partition(":")
        if given.here:
            run(given.model, int(n_ctx), kv_type, given.ubatch, given.start, given.prompt)
            return
        same = [given.model, "--cases", case, "--ubatch", str(given.ubatch), "--start", str(given.start)]
        same += ["--prompt", str(given.prompt)]
        subprocess.run([sys.executable, __file__, *same, "--here"], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
