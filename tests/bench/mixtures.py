"""Compares streamed experts with a plain mapping of a mixture that is larger than memory, on a throttled disk.

    python tests/bench/mixtures.py FOLDER [--limit MIB] [--disk MB_S] [--tokens N]

Needs root and Linux with version 1 control groups: the kernel enforces limit and throttle for both sides. FOLDER
is on the throttled disk. The mixture has random weights and a router that prefers some experts; the speed of the
CPU is measured with a similar model with few experts that fits. Prints predicted and measured figures. A plain
mapping is slowed by the disk's read-ahead, which is printed first: if it is not the usual 128 KiB, use a loop
device.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.core.paths import user_paths
from engine.core.types import Delta, GenerationRequest, SamplingParams, Started
from engine.message_catalog import sentences
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.placement.shape import model_shape
from engine.placement.speed import weights_read
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_split import read_gguf_model
from tests.support.models.shapes import Q, scaled, write_shape

LAYERS, EMBEDDING, WIDTH, USED = 16, 1024, 512, 4
# The first block of every embedding is the same, so that a router can prefer some experts whatever is read.
COMMON = 32
BLOCK = 34  # bytes of 32 weights: a scale in two, then a signed byte each
ADDED = 0.03
GROUPS = Path("/sys/fs/cgroup")


def write_mixture(path: Path, experts: int, steepness: float) -> Path:
    """A Qwen3-MoE with random weights. The logits of a layer's experts fall with the logarithm of a random rank."""
    if path.exists():
        return path
    shape = scaled("qwen3moe", layers=LAYERS, embd=EMBEDDING, experts=(experts, USED, WIDTH), qtype=Q.Q8_0)
    write_shape(path, shape)
    rng = np.random.default_rng(1)
    for tensor in (t for part in read_gguf_model(path).parts for t in part.tensors):
        if tensor.name.endswith("ffn_gate_inp.weight"):
            weights = np.memmap(path, np.float32, "r+", tensor.offset, (experts, EMBEDDING))
            weights[:, :COMMON] = -steepness / COMMON * np.log1p(rng.permutation(experts))[:, None]
            continue
        blocks = np.memmap(path, np.uint8, "r+", tensor.offset, (tensor.nbytes // BLOCK, BLOCK))
        if tensor.name == "token_embd.weight":
            first = blocks[:: EMBEDDING // COMMON]
            first[:, :2] = np.frombuffer(np.float16(0.1 / 127).tobytes(), np.uint8)
            first[:, 2:] = 127
        elif tensor.name.endswith(("attn_output.weight", "ffn_down_exps.weight")):
            # Blocks add little compared with the token's own embedding: otherwise all tokens become alike.
            blocks[:, :2] = np.frombuffer(np.float16(ADDED * EMBEDDING**-0.5 / 74).tobytes(), np.uint8)
    return path


async def ask(runner: RunnerProcess, prompt: str, tokens: int, seed: int) -> tuple[list[float], int]:
    """Arrival time of each piece of an answer of random words, and the length of the prompt in tokens."""
    sampling = SamplingParams(temperature=3.0, seed=seed, top_k=0, top_p=1.0, min_p=0.0)
    request = GenerationRequest(prompt=prompt, sampling=sampling, max_tokens=tokens, ignore_eos=True)
    times, read = [time.monotonic()], 0
    async for event in runner.generate(request):
        if isinstance(event, Delta):
            times.append(time.monotonic())
        elif isinstance(event, Started):
            read = event.prompt_tokens
    return times, read


async def measured(settings: LoadSettings, tokens: int) -> dict[str, float]:
    """Speed and hits of an answer of random words after another one, and of a prompt."""
    runner = await RunnerProcess.start("llama", settings.path)
    begun = time.monotonic()
    try:
        await runner.load(settings)
        found = {"load_s": time.monotonic() - begun}
        await ask(runner, "one", tokens, seed=5)
        before = (await runner.stats()).experts
        begun = time.monotonic()
        times, _ = await ask(runner, "two", tokens, seed=6)
        seconds = time.monotonic() - begun
        gaps = np.diff(times[2:])
        found |= {"tok_s": tokens / seconds, "gap_p50_ms": 1e3 * float(np.median(gaps))}
        found["gap_p99_ms"] = 1e3 * float(np.quantile(gaps, 0.99))
        after = (await runner.stats()).experts
        if after is not None and before is not None:
            found["hit_rate"] = (after.there - before.there) / (after.asked - before.asked)
            found["read_mb_a_token"] = (after.read_bytes - before.read_bytes) / 1e6 / tokens
            found["waited_frac"] = (after.waited_s - before.waited_s) / seconds
            found["kept_mib"] = after.cached_bytes / 2**20
        begun = time.monotonic()
        _, read = await ask(runner, " ".join(f"w{n % 97}" for n in range(300)), 1, seed=7)
        found["prompt_tok_s"] = read / (time.monotonic() - begun)
        times, _ = await ask(runner, "three", tokens // 4, seed=8)
        found["tok_s_behind_it"] = (tokens // 4) / (times[-1] - times[0])
        return {name: round(value, 3) for name, value in found.items()}
    finally:
        await runner.stop()


def run(kind: str, path: Path, tokens: int, sibling: Path) -> dict[str, object]:
    """One side, in this process's control groups."""
    placer = Placer(open_resources(user_paths()))
    cache = user_paths().cache
    settings = LoadSettings(
        path=str(path), n_ctx=2048, kv_cells=4096, n_parallel=2, max_draft=0, cache_dir=str(cache / "prefixes")
    )
    if kind == "sibling":
        alike = LoadSettings(
            path=str(sibling), n_ctx=2048, n_parallel=1, max_draft=0, repack=False, n_threads=2, n_threads_batch=2
        )
        found = asyncio.run(measured(alike, tokens))
        read = weights_read(model_shape(read_gguf_model(sibling)))
        placer.history.record_speed("cpu", "cpu", read, found["tok_s"])
        return found
    placed = placer.placement(path.stem, settings)
    at = placed.settings
    if kind == "plain":
        at = settings
        if placed.streaming is not None:
            at = msgspec.structs.replace(placed.settings, expert_bytes=0)
    found = asyncio.run(measured(at, tokens))
    peak = max(int(p.read_text()) for p in (GROUPS / "memory" / "mixtures").glob("memory.max_usage_in_bytes"))
    told: dict[str, object] = {"fits": placed.fits, "reasons": sentences(placed.reasons), "peak_mib": peak / 2**20}
    if placed.streaming is not None:
        told |= {"hit_rate": placed.streaming.hit_rate, "tok_s": placed.streaming.decode_tok_s}
        told |= {"worst_tok_s": placed.streaming.worst_tok_s, "needed_mib": placed.need.total_bytes / 2**20}
    return {"predicted": told, "measured": found}


def in_groups(limit_mib: int, disk_mb_s: float, folder: Path) -> None:
    """Limits for the next child."""
    device = folder.stat().st_dev
    memory, disk = GROUPS / "memory" / "mixtures", GROUPS / "blkio" / "mixtures"
    for group in (memory, disk):
        group.mkdir(exist_ok=True)
    (memory / "memory.limit_in_bytes").write_text(str(limit_mib << 20))
    (memory / "memory.force_empty").write_text("0")
    (memory / "memory.max_usage_in_bytes").write_text("0")
    speed = f"{os.major(device)}:{os.minor(device)} {int(disk_mb_s * 1e6)}"
    (disk / "blkio.throttle.read_bps_device").write_text(speed)


def main() -> None:
    """Each side in a separate child process that starts with an empty page cache."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--limit", type=int, default=1100)
    arguments.add_argument("--disk", type=float, default=200)
    arguments.add_argument("--tokens", type=int, default=200)
    arguments.add_argument("--experts", type=int, default=64)
    arguments.add_argument("--steepness", type=float, default=0.4)
    arguments.add_argument("--kinds", default="sibling,streamed,streamed,plain")
    arguments.add_argument("--run", default="")
    given = arguments.parse_args()
    path = given.folder / f"mixture-{given.experts}-{given.steepness}.gguf"
    sibling = given.folder / f"mixture-8-{given.steepness}.gguf"
    if given.run:
        for name in ("memory", "blkio"):
            (GROUPS / name / "mixtures" / "cgroup.procs").write_text(str(os.getpid()))
        print(json.dumps(run(given.run, path, given.tokens, sibling)))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    write_mixture(path, given.experts, given.steepness)
    write_mixture(sibling, 8, given.steepness)
    device = given.folder.stat().st_dev
    ahead = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/read_ahead_kb")
    print(f"read-ahead {ahead.read_text().strip()} KiB, limit {given.limit} MiB, {given.disk:g} MB/s", flush=True)
    for kind in given.kinds.split(","):
        for file in (path, sibling):
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        in_groups(given.limit, given.disk, given.folder)
        environment = {**os.environ, "TESSERA_HOME": str(given.folder / "home"), "PYTHONPATH": str(ROOT)}
        again = [sys.executable, __file__, *sys.argv[1:], "--run", kind]
        done = subprocess.run(again, env=environment, capture_output=True, text=True, check=False)
        print(kind, done.stdout.strip() or done.stderr[-2000:], flush=True)


if __name__ == "__main__":
    main()
