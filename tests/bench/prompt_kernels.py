"""CPU seconds of a prompt by kernel family: rewritten weights, the file's own, another backend, attention.

    python -m tests.bench.prompt_kernels MODEL.gguf [--rows 512 4096 1 8] [--rounds 3] [--threads 1] [--micro 128]
                  [--plugin LIBRARY] [--cpu LIBRARY] [--tiles LIBRARY] [--sides rewritten tiles]

Each side is one process, loaded before the first round; the sides alternate. Only `llama_decode` runs, with one
thread, because threads that wait for each other at barriers use CPU time. `--rows` of 512 or more are one prompt;
smaller numbers are 48 steps of that many rows. `--plugin` is the library of an additional backend, such as
libggml-blas.so; `--cpu` is another build of the CPU backend; `--tiles` is a build of Tessera's prompt kernels,
used for all types they support. `--micro` lists micro-batch sizes to measure in addition to 512. Prints the
minimum CPU time of a side, its gain over the first side, and the minimum elapsed time.
"""

import argparse
import ctypes
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEPPED_ROWS, PROMPT_ROWS = 48, 512


def child(side: dict[str, Any]) -> None:
    """Answers each line on stdin (rows) with their CPU and wall-clock seconds."""
    from engine.runner.llama.native import llama_api

    api = llama_api.load_api()
    lib = llama_api.ggml(api)
    quiet = api.llama_log_callback(lambda *_: None)  # stored, because llama.cpp calls it later too
    api.llama_log_set(quiet, None)
    lib.ggml_backend_load.restype = ctypes.c_void_p
    cpu = side["cpu"] or llama_api.library_folder() / "libggml-cpu.so"
    for library in filter(None, (side.get("plugin"), side.get("tiles"), cpu)):
        if not lib.ggml_backend_load(str(library).encode()):
            raise SystemExit(f"{library} did not load")
    if "tiles" in side:
        ctypes.CDLL(side["tiles"]).ggml_tiles_take(ctypes.c_uint64(2**64 - 1))
    api.llama_backend_init()
    of_model = api.llama_model_default_params()
    of_model.n_gpu_layers, of_model.use_extra_bufts = 0, side.get("repack", True)
    model = api.llama_model_load_from_file(side["model"].encode(), of_model)
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = side["cells"]
    params.n_ubatch = side.get("micro", 512)
    params.n_threads = params.n_threads_batch = side["threads"]
    params.flash_attn_type = side.get("fused", 1)
    context = api.llama_init_from_model(model, params)
    memory = api.llama_get_memory(context)
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    rng = random.Random(1)
    tokens = [rng.randrange(100, vocabulary - 100) for _ in range(side["cells"])]

    def decode(count: int) -> None:
        array = (ctypes.c_int32 * count)(*tokens[:count])
        if api.llama_decode(context, api.llama_batch_get_one(array, count)) != 0:
            raise SystemExit("llama_decode failed")

    decode(8)
    for line in sys.stdin:
        rows = int(line)
        api.llama_memory_clear(memory, True)
        began, started = time.perf_counter(), time.process_time()
        for _ in range(1 if rows >= PROMPT_ROWS else max(1, STEPPED_ROWS // rows)):
            decode(rows)
        api.llama_synchronize(context)
        print(time.process_time() - started, time.perf_counter() - began, flush=True)


def sides(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The compared products, by name."""
    common = {"model": str(options.model), "cpu": options.cpu, "cells": max(512, *options.rows)}
    common["threads"] = options.threads
    found: dict[str, dict[str, Any]] = {
        "rewritten": {},
        "file": {"repack": False},
        "file, plain, 128": {"repack": False, "fused": 0, "micro": 128},
    }
    found |= {f"file, {size}": {"repack": False, "micro": size} for size in options.micro}
    if options.plugin:
        found["plugin"] = {"plugin": options.plugin}
        found["file, plugin"] = {"repack": False, "plugin": options.plugin}
    if options.tiles:
        found["rewritten, tiles"] = {"tiles": options.tiles}
        found["tiles"] = {"repack": False, "tiles": options.tiles}
        found["tiles, plain, 128"] = {"repack": False, "tiles": options.tiles, "fused": 0, "micro": 128}
    wanted = options.sides or found
    return {name: {**common, **changes} for name, changes in found.items() if name in wanted}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plugin")
    parser.add_argument("--cpu")
    parser.add_argument("--tiles")
    parser.add_argument("--sides", nargs="+")
    parser.add_argument("--micro", type=int, nargs="*", default=[])
    options = parser.parse_args()
    running = {}
    for name, side in sides(options).items():
        command = [sys.executable, "-m", "tests.bench.prompt_kernels", "--child", json.dumps(side)]
        pipe = subprocess.PIPE
        running[name] = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    for rows in options.rows:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
        for turn in range(options.rounds):
            for name, process in sorted(running.items(), reverse=turn % 2 == 1):
                assert process.stdin is not None
                assert process.stdout is not None
                print(rows, file=process.stdin, flush=True)
                spent, wall = map(float, process.stdout.readline().split())
                found[name].append((spent, wall))
        first = min(next(iter(found.values())))[0]
        for name, seconds in found.items():
            least, wall = min(seconds)[0], min(took for _, took in seconds)
            print(f"{rows:6} rows  {name:18} {least:8.3f} s  gain {first / least:.2f}  wall {wall:.3f}", flush=True)
    for process in running.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(json.loads(sys.argv[2]))
    else:
        main()
