"""Compares decode speed through HTTP with that of the kernels: same model, threads and length, alternating.

    python tests/bench/decode_overhead.py MODEL.gguf [MODEL.gguf ...] [--tokens 96] [--rounds 5] [--threads 2]

The bare side is `llama_decode` of one token at a time in a separate process: no sampling, no text, no client. The
served side is a real server and a streaming client. Both use the context and the attention that dispatch chose.
Prints tokens/s and the ratio per round.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import httpx2

from tests.bench.clients import complete


def bare(path: str, threads: int, n_ctx: int, attention: str) -> None:
    """Child: answers each line on stdin (a token count) with the seconds its decode took."""
    import ctypes

    from engine.runner.llama.native.llama_api import start_backends
    from engine.runner.llama.native.model import FLASH_ATTN

    api = start_backends()
    quiet = api.llama_log_callback(lambda *_: None)  # stored, because llama.cpp calls it later too
    api.llama_log_set(quiet, None)
    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
    params = api.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = n_ctx, threads, threads
    params.flash_attn_type = FLASH_ATTN[attention]
    context = api.llama_init_from_model(model, params)
    memory = api.llama_get_memory(context)
    for line in sys.stdin:
        count = int(line)
        api.llama_memory_clear(memory, True)
        tokens = (ctypes.c_int32 * 8)(*range(40, 48))
        api.llama_decode(context, api.llama_batch_get_one(tokens, 8))
        one = (ctypes.c_int32 * 1)(50)
        started = time.perf_counter()
        for _ in range(count):
            api.llama_decode(context, api.llama_batch_get_one(one, 1))
        api.llama_synchronize(context)
        print(time.perf_counter() - started, flush=True)


def served(url: str, model: str, count: int) -> float:
    """Seconds between the first and the last streamed token, by the client's clock."""
    reply = complete(url, model, list(range(40, 48)), count + 1)
    if reply.usage["completion_tokens"] != count + 1:
        raise SystemExit(f"{reply.usage['completion_tokens']} tokens came, {count + 1} were asked for")
    return reply.arrivals[-1] - reply.arrivals[0]


def chosen(server, model: str) -> tuple[int, str]:
    """Cells and attention that the served side will use."""
    url = f"{server.url}/tessera/v1/models/{model}/placement"
    answer = httpx2.get(url, headers={"authorization": f"Bearer {server.token}"}, timeout=60)
    placement = answer.raise_for_status().json()["placement"]
    settings = {"n_ctx": 0, "kv_cells": 0, "flash_attn": "auto", **placement["settings"]}
    return max(settings["n_ctx"], settings["kv_cells"]), settings["flash_attn"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bare", nargs=2, metavar=("CELLS", "ATTENTION"), help="Be the bare side.")
    options = parser.parse_args()
    if options.bare:
        bare(options.models[0], options.threads, int(options.bare[0]), options.bare[1])
        return
    from tests.support.servers import RunningServer

    for path in options.models:
        with tempfile.TemporaryDirectory() as home:
            models = Path(home) / "models"
            models.mkdir()
            link = models / f"bench-{Path(path).name}"
            link.symlink_to(Path(path).resolve())
            server = RunningServer(Path(home))
            cells, attention = chosen(server, link.name)
            command = [sys.executable, __file__, path, "--threads", str(options.threads)]
            command += ["--bare", str(cells), attention]
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            try:
                compare(path, link.name, server.url, child, options)
            finally:
                child.kill()
                child.wait()
                server.stop()


def compare(path, name, url, child, options) -> None:
    """Take turns and print one row a round."""

    def bare_seconds(count: int) -> float:
        child.stdin.write(f"{count}\n")
        child.stdin.flush()
        return float(child.stdout.readline())

    served(url, name, 8), bare_seconds(8)
    ratios, rows = [], []
    for _ in range(options.rounds):
        b = options.tokens / bare_seconds(options.tokens)
        s = options.tokens / served(url, name, options.tokens)
        rows.append((b, s))
        ratios.append(s / b)
    bare_speed, served_speed = (statistics.median(r[i] for r in rows) for i in (0, 1))
    spread = f"{min(ratios):.3f}..{max(ratios):.3f}"
    print(f"{Path(path).name}: bare {bare_speed:.1f} tok/s, served {served_speed:.1f} tok/s, ", end="")
    print(f"ratio median {statistics.median(ratios):.3f} ({spread}), {options.rounds} x {options.tokens} tokens")


if __name__ == "__main__":
    main()
