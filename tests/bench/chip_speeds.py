"""Fits the constants of GPU families to published runs, and reports the error for a chip that was left out.

`python tests/bench/chip_speeds.py [--runs FILE] [--write]`

`--write` stores the constants of GPUs in engine/placement/chip_speeds.json. Runs are tests/data/speeds/runs.json,
or another file with the same fields that is only evaluated. A constant is the mean of logarithms over the chips of
its family and backend, plus the mean of its relatives with the weight of two chips. So a family of one chip stays
near its relatives, and a family without runs has their value. Excluded from the fit and evaluated separately: runs
that a note calls broken; runs of builds before 2025 if the family has newer ones, because Vulkan, ROCm and SYCL
became up to twice as fast since; prompts by AMD's matrix units through Vulkan before 2026. Excluded from the fit
but evaluated: prompts of models with less than a billion parameters, which are too small to reach a share of the
peak.
"""

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from devices.chips import Gpu, chips, cpu_kind, gpu
from engine.placement.chip_speeds import TABLE, chip_speeds, most_read, peak_tflops, type_speed

RUNS = Path("tests/data/speeds/runs.json")
GIB = 1.073741824
# Milliseconds per layer, by vendor: two constants for each chip would fit its two runs exactly and mean nothing.
LAYER_MS = {"AMD": 0.03, "Intel": 0.02, "Apple": 0.12, "NVIDIA": 0.05, "Qualcomm": 0.0}
BACKENDS = {
    "AMD": ("vulkan", "rocm"),
    "Intel": ("vulkan", "sycl"),
    "NVIDIA": ("cuda", "vulkan"),
    "Apple": ("metal",),
    "Qualcomm": ("opencl", "vulkan"),
}
# Families whose kernels are alike.
KIN = {
    **dict.fromkeys(("rdna3-igpu", "rdna3-card", "rdna4-card"), "rdna3"),
    **dict.fromkeys(("xe-lp", "xe-lpg", "xe-lpg+", "xe-card"), "xe1"),
    **dict.fromkeys(("xe2-igpu", "xe2-card", "xe3-igpu"), "xe2"),
    **dict.fromkeys(("apple", "apple-tensor"), "apple"),
    **dict.fromkeys(("nvidia", "gb10", "nvidia-dp4a"), "nvidia"),
    **dict.fromkeys(("rdna2-igpu", "rdna2-card", "vega"), "rdna2"),
}
# Weight of a family's relatives against one of its chips; and of a family against a chip's own runs.
KIN_WEIGHT = 2
OWN_WEIGHT = 6
# With this many chips of current builds a family's older ones are ignored; by AMD's matrix units, with one.
MANY = 2
# First year of the builds that count; and of prompts by AMD's matrix units through Vulkan, which were 1.36 to 1.76
# times as fast from January 2026 on (ggml-org/llama.cpp, pull request 18749).
CURRENT = "2025"
CURRENT_AMD_MATRIX = "2026"
# How many usual cores one of another kind is worth, if no other run shows it: Intel's efficiency cores have vectors
# of half the width; with i8mm, one of Arm's instructions multiplies twice as many values.
LIKE_CORES = {"slow": 0.5, "i8mm": 2.0}
# No chip uses more of its bandwidth; a higher fitted value means that a layer costs less than assumed.
MOST_READ = 0.95
GOALS = {"prompt": 1.20, "decode": 1.12}
WITHIN = 1.5


class Run(NamedTuple):
    """One published run of a dense model on a GPU."""

    chip: Gpu
    backend: str
    model: str
    params_b: float
    read_gb: float
    layers: int
    bandwidth_gbs: float
    prompt_tok_s: float | None
    decode_tok_s: float | None
    date: str
    note: str

    newer: tuple[tuple[str, int], ...] = ()

    @property
    def by_amd_matrix(self) -> bool:
        return self.backend == "vulkan" and self.chip.vendor == "AMD" and self.chip.has_matrix("vulkan", "linux")

    def old(self, phase: str) -> bool:
        if self.backend in {"cuda", "metal"} or not self.date:
            return False
        return self.date < (CURRENT_AMD_MATRIX if self.by_amd_matrix and phase == "prompt" else CURRENT)

    def fitted(self, phase: str) -> bool:
        """Whether constants are fitted to it. `newer`: how many chips of its family have current runs, by phase."""
        enough = 1 if self.by_amd_matrix else MANY
        return not self.broken(phase) and not (self.old(phase) and dict(self.newer).get(phase, 0) >= enough)

    def broken(self, phase: str) -> bool:
        return bool(self.note) and not (self.note == "decode broken" and phase == "prompt")

    @property
    def top(self) -> float | None:
        backend = {"ipex": "sycl"}.get(self.backend, self.backend)
        return peak_tflops(self.chip, self.chip.has_matrix(backend, "linux"))

    @property
    def faster_type(self) -> float:
        found = re.search(r"\b(I?Q\d\w*|BF16|F16)\b", self.model)
        return type_speed(self.backend, found[1] if found else "")

    @property
    def share(self) -> float:
        assert self.top is not None
        assert self.prompt_tok_s is not None
        return 2 * self.params_b * self.prompt_tok_s / 1e3 / self.top / self.faster_type

    @property
    def reads(self) -> float:
        assert self.decode_tok_s is not None
        seconds = 1 / self.decode_tok_s
        left = max(seconds - self.layers * LAYER_MS[self.chip.vendor] / 1e3, 0.3 * seconds)
        return self.read_gb / (left * self.bandwidth_gbs)

    def decode_s(self, reads: float) -> float:
        return self.read_gb / (reads * self.bandwidth_gbs) + self.layers * LAYER_MS[self.chip.vendor] / 1e3


def gpu_runs(rows: Iterable[dict]) -> list[Run]:
    found = []
    for row in rows:
        chip = gpu(row["chip"])
        if chip is None:
            continue
        assert "*" not in row["model"]
        found.append(
            Run(
                chip, row["backend"], row["model"], row["params_b"], row["file_gib"] * GIB, row["layers"],
                row["bandwidth_gbs"], row["prompt_tok_s"], row["decode_tok_s"],
                row.get("date") or "", row.get("note") or "",
            )
        )  # fmt: skip
    newer: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for run in found:
        current = {(phase, run.chip.id) for phase in GOALS if not run.old(phase) and not run.broken(phase)}
        newer.setdefault((run.chip.family, run.backend), set()).update(current)
    counts = {key: tuple(Counter(phase for phase, _ in chips_of).items()) for key, chips_of in newer.items()}
    return [run._replace(newer=counts[run.chip.family, run.backend]) for run in found]


def for_prompts(runs: Iterable[Run]) -> list[Run]:
    return [r for r in runs if r.fitted("prompt") and r.prompt_tok_s and r.top and r.params_b >= 1]


def for_decode(runs: Iterable[Run]) -> list[Run]:
    return [r for r in runs if r.fitted("decode") and r.decode_tok_s]


def kind_of(backend: str) -> str:
    return "vulkan" if backend == "vulkan" else "own"


def prompt_kin(chip: Gpu, backend: str) -> list[tuple]:
    kin = KIN.get(chip.family, chip.family)
    return [(chip.id, backend), (chip.family, backend), (kin, kind_of(backend)), (kin,), (chip.vendor,), ()]


def decode_kin(chip: Gpu, backend: str) -> list[tuple]:
    kin = KIN.get(chip.family, chip.family)
    family = (chip.family, backend)
    return [(chip.id, backend), family, (kin, chip.kind), (kin,), (chip.vendor, chip.kind), (chip.vendor,), ()]


def estimate(
    runs: Sequence[Run],
    chip: Gpu,
    backend: str,
    value: Callable[[Run], float],
    kin: Callable[[Gpu, str], list[tuple]],
    *,
    family: bool = False,
) -> tuple[float, int]:
    """The constant of a chip, or of its whole family, and the number of chips it is based on."""
    found, count = None, 0
    for level in range(len(kin(chip, backend)) - 1, 0 if family else -1, -1):
        wanted = kin(chip, backend)[level]
        by_chip: dict[str, list[float]] = {}
        for run in runs:
            if kin(run.chip, run.backend)[level] == wanted:
                by_chip.setdefault(run.chip.id, []).append(math.log(value(run)))
        weight = OWN_WEIGHT if level == 0 else 1
        means = [median(values) for values in by_chip.values()]
        count = len(means)
        if means:
            found = (
                median(means)
                if found is None
                else (weight * sum(means) + KIN_WEIGHT * found) / (weight * len(means) + KIN_WEIGHT)
            )
    assert found is not None
    return math.exp(found), count


def factor(forecast: float, measured: float) -> float:
    return max(forecast / measured, measured / forecast)


def left_out(
    runs: Sequence[Run], pool: Sequence[Run], phase: str, *, family: bool = False
) -> list[tuple[float, str]]:
    """The error for a chip's runs when it, or its whole family, was left out of the fit: (factor, which)."""
    found = []
    for run in runs:
        rest = [r for r in pool if (r.chip.family != run.chip.family if family else r.chip.id != run.chip.id)]
        name = f"{run.chip.id} {run.backend} {run.model}"
        if phase == "prompt" and run.prompt_tok_s and run.top:
            share, _ = estimate(for_prompts(rest), run.chip, run.backend, lambda r: r.share, prompt_kin)
            found.append((factor(share, run.share), name))
        if phase == "decode" and run.decode_tok_s:
            reads, _ = estimate(for_decode(rest), run.chip, run.backend, lambda r: r.reads, decode_kin)
            found.append((factor(run.decode_s(reads), 1 / run.decode_tok_s), name))
    return found


def processors(rows: Iterable[dict]) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
    """The error for a CPU (prompt, decode) when it was left out: by the median of others with its cores.

    Without others it counts as an unknown CPU: LIKE_CORES, and the bandwidth of the last row.
    """
    rule, prompt, decode = chip_speeds().cpu, [], []
    runs = [row for row in rows if row["backend"] == "cpu" and row.get("note") != "another backend's processor"]
    for row in runs:
        chip, others = cpu_kind(row["chip"]), [other for other in runs if other["chip"] != row["chip"]]
        if row["prompt_tok_s"]:
            alike = [per_core(o) for o in others if o["prompt_tok_s"] and core_of(o) == core_of(row)]
            flops = median(alike or [rule.core * LIKE_CORES.get(core_of(row), 1.0)]) * row["threads"] * chip.ghz
            prompt.append((factor(1e3 * flops / 2 / row["params_b"], row["prompt_tok_s"]), row["chip"]))
        reads = [o["decode_tok_s"] * o["file_gib"] * GIB for o in others if cpu_kind(o["chip"]) is chip]
        cap = max(reads) if reads else most_read(cpu_kind("other"), row["bandwidth_gbs"])
        gbs = min(rule.reads * row["bandwidth_gbs"], cap, rule.thread_gbs * row["threads"])
        seconds = max(row["file_gib"] * GIB / gbs, row["params_b"] * rule.unpack_ns / row["threads"])
        seconds += row["layers"] * rule.layer_us / 1e6 + rule.token_us / 1e6
        decode.append((factor(1 / seconds, row["decode_tok_s"]), row["chip"]))
    return prompt, decode


def core_of(row: dict) -> str:
    return row["note"] or ("slow" if cpu_kind(row["chip"]).slow_cores else "")


def per_core(row: dict) -> float:
    return 2 * row["params_b"] * row["prompt_tok_s"] / 1e3 / row["threads"] / cpu_kind(row["chip"]).ghz


def print_errors(what: str, errors: list[tuple[float, str]]) -> None:
    factors = sorted(error for error, _ in errors)
    if not factors:
        return
    within = sum(error <= WITHIN for error in factors) / len(factors)
    tenth = factors[min(len(factors) - 1, int(0.9 * len(factors)))]
    middle = f"median {median(factors):.3f}, nine in ten {tenth:.2f}"
    print(f"{what}: n={len(factors)}, {middle}, within {WITHIN}: {within:.0%}")
    for error, name in sorted(errors, reverse=True)[:6]:
        print(f"    {error:.2f}  {name}")


def constants(runs: Sequence[Run]) -> list[dict]:
    """One row for each of its families and backends, after those of chips with runs of their own."""
    own = dict.fromkeys(
        (r.chip, r.backend)
        for r in runs
        if (r.fitted("prompt") or r.fitted("decode")) and r.backend in BACKENDS[r.chip.vendor]
    )
    rows = [
        {"family": chip.family, "chip": chip.id, **constant(runs, chip, backend, family=False)}
        for chip, backend in own
    ]
    first = {chip.family: chip for chip in reversed(chips().gpus)}
    for family in dict.fromkeys(chip.family for chip in chips().gpus):
        of_all = [constant(runs, first[family], backend, family=True) for backend in BACKENDS[first[family].vendor]]
        rows += [{"family": family, **row} for row in of_all]
    return rows


def constant(runs: Sequence[Run], chip: Gpu, backend: str, *, family: bool) -> dict:
    """The constants of a chip, or of its family."""
    row: dict = {"backend": backend}
    of_family = [r for r in runs if (r.chip.family, r.backend) == (chip.family, backend) and r.prompt_tok_s]
    flat = [2 * r.params_b * (r.prompt_tok_s or 0) / 1e3 / r.faster_type for r in of_family if not r.top]
    if flat:
        row["tflops"] = round(fmean(flat), 2)
    else:
        row["share"] = round(
            estimate(for_prompts(runs), chip, backend, lambda r: r.share, prompt_kin, family=family)[0], 3
        )
    reads, count = estimate(for_decode(runs), chip, backend, lambda r: r.reads, decode_kin, family=family)
    return row | {"reads": round(min(reads, MOST_READ), 3), "layer_ms": LAYER_MS[chip.vendor], "chips": count}


def write(rows: list[dict]) -> None:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    table["gpus"] = rows
    lines = [
        f' "{key}": {_listed(value)}' if isinstance(value, list) else f' "{key}": {json.dumps(value)}'
        for key, value in table.items()
    ]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _listed(values: list) -> str:
    return "[\n" + ",\n".join(f"  {json.dumps(value)}" for value in values) + "\n ]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = json.loads(options.runs.read_text(encoding="utf-8"))
    pool = gpu_runs(json.loads(RUNS.read_text(encoding="utf-8")))
    if options.write:
        write(constants(pool))
    runs = gpu_runs(rows)
    cpus = dict(zip(("prompt", "decode"), processors(rows), strict=True))
    for phase, goal in GOALS.items():
        print(f"\n{phase}, goal: median {goal}, nine in ten {WITHIN}")
        current = [r for r in runs if not r.old(phase) and not r.broken(phase)]
        now = left_out(current, pool, phase)
        print_errors("  GPUs, chip left out, current builds", now)
        print_errors("  GPUs, family left out, current builds", left_out(current, pool, phase, family=True))
        print_errors("  GPUs, chip left out, all runs", left_out(runs, pool, phase))
        print_errors("  processors, left out", cpus[phase])
        print_errors("  GPUs with current builds and processors together", now + cpus[phase])


if __name__ == "__main__":
    main()
