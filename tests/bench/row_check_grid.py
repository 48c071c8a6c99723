"""Opt-in: runs every device check on sound devices, over all architectures; no check may report an error.

    python tests/bench/row_check_grid.py [--device Vulkan0] [--only NAME ...] [--ubatches 64 512] [--record]

Without a device, the CPU's optimized kernels are compared with its plain ones: all shapes of tests/support/models.
With a device, six narrower shapes run on a kernel pack's backend. Each is loaded once with each cache type, so
every pair of (architecture, ubatch), (architecture, cache type) and (ubatch, cache type) is covered. Each load
gets three checks: the one of a first load, the deep one of an idle server, and the recomputed rows of four
concurrent answers.

A software Vulkan device needs Mesa's lavapipe (25.0.7; 22.3.6 crashed in two of four tries), an installed Vulkan
pack and GGML_VK_VISIBLE_DEVICES=0. LLVM 15 splits the coroutines of one shader in minutes, LLVM 19 in seconds.
With a persistent MESA_SHADER_CACHE_DIR, the next run of a load needs a tenth of the first one's CPU time. Mesa
26.0.3 computes prompts of 97 to 127 rows wrongly, which the checks find: use ubatches of up to 64 there.

Time limits are off, so every scenario runs. `--record` writes the totals to tests/bench/results; CPU seconds are
those of this process and its children.
"""

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.runner.llama import deep_check_child
from engine.runner.llama.native.device_check import DeviceWrong
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.model import load
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.reference_child import compute, reference_settings
from engine.runner.llama.service import compared
from engine.runner.protocol import LoadSettings
from tests.bench.recording import record
from tests.integration.test_row_check import recorded, verdicts
from tests.support.check_clock import replace_clock
from tests.support.models.architectures import ARCHITECTURES, write_architecture
from tests.support.models.shapes import SHAPES, scaled, shallow, write_shape

# The types that the window offers, then the other ones of llama.cpp.
CACHES = ("f16", "q8_0", "q4_0", "q5_1", "bf16", "f32", "q5_0", "q4_1", "iq4_nl")
UBATCHES = (64, 256, 512)
ON_DEVICE = ("llama-q4_0", "big-vocab", "qwen3moe", "gemma3", "lfm2", "deepseek2")
UNQUANTIZED = ("f16", "bf16", "f32")
CHECKS = ("load", "idle", "rows")
# A software GPU computes some hundred times slower than the CPU's kernels: smaller models, all kinds of tensors.
NARROW = {"layers": 2, "embd": 256, "ffn": 512, "vocab": 1024}
# Tokens of the long text, on the CPU and on a device; windows of the shapes have at most 512.
DEPTH, DEVICE_DEPTH = 1200, 576
CONTEXT = 1536


def device_writers() -> dict[str, Callable[[Path], Path]]:
    """The same for the shapes tried on a device; the vocabulary of `big-vocab` stays larger than 16 bits."""
    shapes = {name: scaled(name, **NARROW) for name in ON_DEVICE}
    # llama.cpp computes the width of its heads from the embedding's.
    shapes["lfm2"] = replace(shapes["lfm2"], embd=512, recurrent_layers=(0,))
    shapes["big-vocab"] = scaled("big-vocab", layers=1, embd=64, vocab=70_000)
    return {name: lambda path, shape=shape: write_shape(path, shape) for name, shape in shapes.items()}


def writers() -> dict[str, Callable[[Path], Path]]:
    """A function that writes the file of each model that generates, by name."""
    named: dict[str, Callable[[Path], Path]] = {}
    for name in SHAPES:
        shape = scaled(name, layers=2) if name == "big-vocab" else shallow(name)
        named[name] = lambda path, shape=shape: write_shape(path, shape)
    for name, one in ARCHITECTURES.items():
        if not one.encoder and one.arch != "t5":  # they generate nothing, or are not served
            named[name] = lambda path, one=one: write_architecture(path, one)
    return named


def combinations(number: int, caches: tuple[str, ...], ubatches: tuple[int, ...]) -> list[tuple[str, str, int]]:
    """(cache type, attention, ubatch) of the architecture with this number."""
    found = []
    for i, cache in enumerate(caches):
        attention = "off" if cache in UNQUANTIZED and (number + i) % 2 else "on"
        found.append((cache, attention, ubatches[(number + i) % len(ubatches)]))
    return found


def cpu_s() -> float:
    """CPU seconds of this process and of its children that ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


class Grid:
    """Runs the checks and sums up what they found; `spent` has the CPU seconds of each check."""

    def __init__(self, device: str) -> None:
        self.devices = (device,) if device else ()
        self.depth = DEVICE_DEPTH if device else DEPTH
        self.api = start_backends(self.devices)
        self.spent: dict[str, list[float]] = {name: [] for name in ("reference", *CHECKS)}
        self.alarms: list[str] = []
        self.skipped: list[str] = []

    def timed(self, check: str, work: Callable[[], Any]) -> Any:
        """The result of some work, whose CPU seconds are added to those of a check."""
        began = cpu_s()
        try:
            return work()
        finally:
            self.spent[check].append(cpu_s() - began)

    def run(self, where: str, settings: LoadSettings, folder: Path) -> None:
        """All checks of one load."""
        try:
            reference = self.timed("reference", lambda: self.written(settings, folder / f"{where}.msgpack"))
            at_load = self.timed("load", lambda: self.at_load(settings, reference))
            deep = self.timed("idle", lambda: deep_check_child.compared(settings, self.depth))
            rows = self.timed("rows", lambda: verdicts(*self.recorded(settings)))
        except Exception as error:  # a combination that llama.cpp does not offer
            self.skipped.append(f"{where}: {error}")
            print(f"{where}: not compared: {error}", flush=True)
            if not isinstance(error, (ValueError, RuntimeError)):
                traceback.print_exc()
            return
        wrong = [row for row in rows if row.wrong]
        found = {"load": at_load, "idle": deep.get("wrong"), "rows": [row.nats for row in wrong]}
        self.alarms += [f"{where}: {check}: {what}" for check, what in found.items() if what]
        spent = ", ".join(f"{name} {values[-1]:.1f}" for name, values in self.spent.items())
        worst = max((row.nats for row in rows), default=0.0)
        print(
            f"{where}: {'; '.join(f'{k} {v}' for k, v in found.items() if v) or 'sound'}; deep "
            f"{deep.get('nats', 0):.2g}, {len(rows)} answers {worst:.2g} nats; CPU s: {spent}",
            flush=True,
        )

    def written(self, settings: LoadSettings, path: Path) -> str:
        """The path of the CPU's reference."""
        path = path.with_name(path.name.replace("/", "-"))
        reference = compute(self.api, reference_settings(settings), settings.n_ctx)
        path.write_bytes(msgspec.msgpack.encode(reference))
        return str(path)

    def at_load(self, settings: LoadSettings, reference: str) -> str:
        """The findings of a first load's check; empty if there are none."""
        settings = msgspec.structs.replace(settings, reference_path=reference)
        loaded = load(self.api, settings, lambda _fraction: True)
        try:
            if compared(loaded, LlamaVocabulary(self.api, loaded.vocab)) is None:
                raise ValueError("the reference was not usable")
        except DeviceWrong as error:
            return str(error)
        finally:
            loaded.close()
        return ""

    def recorded(self, settings: LoadSettings) -> tuple[LoadSettings, list[Any]]:
        """Rows of answers of a runner with these settings."""
        fields = ("n_batch", "n_ubatch", "type_k", "type_v", "flash_attn", "devices", "n_gpu_layers")
        return recorded(settings.path, **{name: getattr(settings, name) for name in fields})


def main() -> int:
    """Print each load and the totals; the exit code is 1 after a false alarm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="", help="ggml's name of the device; empty: the CPU")
    parser.add_argument("--only", nargs="+", default=[], help="names of shapes")
    parser.add_argument("--caches", nargs="+", default=CACHES)
    parser.add_argument("--ubatches", nargs="+", type=int, default=UBATCHES)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    with pytest.MonkeyPatch.context() as monkeypatch:
        replace_clock(monkeypatch, lambda: 0.0)
        return examine(options)


def examine(options: argparse.Namespace) -> int:
    """Run the grid; the number of an architecture rotates its ubatches."""
    named = device_writers() if options.device else writers()
    names = options.only or list(named)
    grid, loads = Grid(options.device), 0
    for number, name in enumerate(names):
        with tempfile.TemporaryDirectory() as folder:
            path = str(named[name](Path(folder) / "model.gguf"))
            for cache, attention, ubatch in combinations(number, tuple(options.caches), tuple(options.ubatches)):
                loads += 1
                settings = LoadSettings(
                    path=path,
                    n_ctx=CONTEXT,
                    n_parallel=4,
                    n_threads=1,
                    n_threads_batch=1,
                    n_batch=3 * ubatch,
                    n_ubatch=ubatch,
                    type_k=cache,
                    type_v=cache,
                    flash_attn=attention,
                    devices=grid.devices,
                    n_gpu_layers=999 if grid.devices else 0,
                )
                grid.run(f"{name} {cache} {attention} {ubatch}", settings, Path(folder))
    compared_loads = loads - len(grid.skipped)
    for line in (*grid.skipped, *grid.alarms):
        print(line)
    print(f"{len(names)} architectures, {loads} loads, {compared_loads} compared, {len(grid.alarms)} false alarms")
    for check, values in grid.spent.items():
        if values:
            print(f"CPU s of {check}: mean {sum(values) / len(values):.2f}, most {max(values):.2f}")
    if options.record and compared_loads:
        where = {"device": options.device or "CPU", "architectures": len(names)}
        where |= {"cache_types": "/".join(options.caches), "ubatches": "/".join(map(str, options.ubatches))}
        where |= {"shapes": "/".join(names)} if options.only else {}
        record("row_check_grid", "false alarms", len(grid.alarms), "", n=compared_loads, **where)
        for check, values in grid.spent.items():
            mean = round(sum(values) / len(values), 2)
            record("row_check_grid", f"CPU time of the check: {check}", mean, "s", n=len(values), **where)
    return bool(grid.alarms)


if __name__ == "__main__":
    sys.exit(main())
