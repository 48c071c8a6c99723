"""Fit seconds a token = a + b x depth to published runs of chips, and say how far off that is for a model left out.

`python tests/bench/depth_speeds.py [--rows FILE] [--shapes FILE] [--write]`

Rows are tests/data/speeds/depths.jsonl. With `--rows` the constants fitted to these are judged on another file of
the same fields. `--write` puts the constants of chips that the table of chips knows into chip_speeds.json.

For each chip, backend and driver branch the parts of a token's time (weights, layers, experts, cache, attention)
get non-negative constants by least squares on relative errors, each file counted once, a few robust rounds; a part
that the runs say little of stays near the rule for the chip's family, with which the fit begins.
"""

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from devices.chips import gpu
from devices.types import Device, Memory, Runtime
from engine.placement.chip_speeds import (
    MIXTURE_LAYERS,
    MIXTURE_PROMPTS,
    TABLE,
    mixture_speed,
    ruled_rates,
    speed_of,
)
from engine.placement.speed import DENSE_PIECE, UBATCH_EXPONENT, USUAL_UBATCH

FOLDER = Path("tests/data/speeds")
ROWS, SHAPES = FOLDER / "depths.jsonl", FOLDER / "shapes.json"
CHIPS = {
    "gfx1151": "gfx1151-8060s",
    "R9700": "r9700",
    "M2 Ultra": "m2-ultra",
    "GB10": "gb10",
    "Arc Pro B70": "b70",
    "RTX 5090": "rtx5090",
    "RTX 4080": "rtx4080",
    "RTX A6000": "rtxa6000",
}
# Which branch of drivers a backend of this program is; older ones are fitted and judged, not shipped.
BRANCHES = {
    "vulkan-radv": "vulkan",
    "vulkan-anv": "vulkan",
    "rocm-7": "rocm",
    "cuda": "cuda",
    "metal": "metal",
    "sycl": "sycl",
}
WIDE, BRAIN = re.compile(r"BF16|F16|F32"), re.compile(r"BF16")
# How much a part's constant is held to the rule, against the weight of one file's rows; answers vary less.
HELD = {"decode": 0.6, "prompt": 0.003}
# Errors beyond this count less.
ROUGH = 0.1
MODELS_TO_JUDGE, MODELS_TO_SHIP = 6, 4
GOALS = {"decode": (15, 4, 2), "prompt": (20, 10, 4)}
FURTHER = 2000  # tokens between a measured point and one forecast from it
# Least constants, where the rule has no such part.
LEAST_DECODE = {"token_s": 2e-4, "linear_s": 5e-5, "attention_gflops": 6e4}
LEAST_PROMPT = {"token_s": 1e-5, "linear_s": 2e-6, "layer": 1e-4}


def branch(backend: str) -> str:
    if backend.startswith("rocm"):
        return backend if backend == "rocm-6.4" else backend[:6]
    return backend


def depth(row: dict) -> float:
    return row["depth"] + row["n"] / 2


def usable(row: dict, shapes: dict) -> bool:
    shape, note = shapes.get(row["arch"] or ""), row.get("note") or ""
    strange = ("server", "HTTP", "ds4", "patched b", "ubatch inferred")
    clean = row["engine"].startswith("llama.cpp") and (
        note.startswith("unpatched") or not any(word in note for word in strange)
    )
    told = row["file_gib"] and (row["phase"] == "decode" or row["ubatch"])
    plain = row["kv_type"] in {"f16", None} and row["flash_attn"] is not False
    return bool(shape and shape["full"] is not None and clean and told and plain and " x" not in row["chip"])


def cache_gb(shape: dict, at: float) -> float:
    if shape["mla"]:
        return shape["full"] * shape["mla"][0] * 2 * at / 1e9
    sliding = shape["swa"] * shape["skv"] * shape["shd"] * min(at, shape["win"])
    return 4 * (shape["full"] * shape["kv"] * shape["hd"] * at + sliding) / 1e9


def attention_gmac(shape: dict, at: float) -> float:
    if shape["mla"]:
        return shape["full"] * shape["heads"] * sum(shape["mla"]) * at / 1e9
    return (
        2
        * shape["heads"]
        * (shape["full"] * shape["hd"] * at + shape["swa"] * shape["shd"] * min(at, shape["win"]))
        / 1e9
    )


def parts(row: dict, shapes: dict) -> np.ndarray:
    """What each constant is multiplied with; in the order of `ruled`."""
    shape, at = shapes[row["arch"]], depth(row)
    active = shape["active_b"] / shape["params_b"]
    mixture, kind = active < 0.9, shape["kind"]
    read, quant = row["file_gib"] * 1.073741824, row["quant"] or ""
    wide, brain = bool(WIDE.search(quant)), bool(BRAIN.search(quant))
    if row["phase"] == "decode":
        experts = shape["layers"] * MIXTURE_LAYERS[kind] if mixture else 0
        weights = read * active
        return np.array(
            [
                1, shape["layers"], weights * (not wide), weights * wide, experts, cache_gb(shape, at),
                shape["lin"], weights * (wide and mixture), attention_gmac(shape, at),
            ]
        )  # fmt: skip
    piece = min(row["ubatch"] or USUAL_UBATCH, row["n"])
    more = shape["active_b"] * MIXTURE_PROMPTS[kind] * (USUAL_UBATCH / piece) ** UBATCH_EXPONENT if mixture else 0
    weights = read * (1 if mixture else DENSE_PIECE)
    return np.array(
        [
            1, shape["active_b"], shape["active_b"] * brain, more, weights / piece, attention_gmac(shape, at),
            shape["layers"] / piece, cache_gb(shape, at) / piece, shape["lin"],
        ]
    )  # fmt: skip


def ruled(key: tuple[str, str, str], rows: Sequence[dict]) -> np.ndarray:
    """The constants by the rule for the chip's family: where the fit begins."""
    chip, of, phase = key
    row = gpu(CHIPS[chip]) if chip in CHIPS else None
    gbs = next((r["bandwidth_gbs"] for r in rows if r["bandwidth_gbs"]), 300.0)
    backend = BRANCHES.get(of, "rocm" if of.startswith("rocm") else "vulkan")
    if row is None:
        reads, flops, layer_s, expert_s, prompt = 0.8 * gbs, 60.0 * gbs, 4e-5, 1e-4, 0.4
    else:
        runtime = Runtime(
            backend, "", 0, 0, 0, "usable", matrix_units=row.has_matrix(backend, "linux"), int_dot=True
        )
        memory = Memory(bandwidth_gbs=gbs)
        device = Device("x", row.kind, row.vendor, row.name, "usable", memory, chip=row.id, runtimes=(runtime,))
        speed = speed_of(row, backend)
        assert speed is not None
        rates, mixture = ruled_rates(device, row, speed, runtime), mixture_speed(device, backend)
        reads, flops, layer_s = rates.gbs, rates.gflops, rates.layer_s
        expert_s, prompt = mixture.layer_ms["many"] / 1250, mixture.prompt["many"]
    if phase == "decode":
        return np.array(
            [
                LEAST_DECODE["token_s"], layer_s, 1 / reads, 0.9 / reads, expert_s, 1 / (0.75 * reads),
                LEAST_DECODE["linear_s"], 1.5 / gbs, 2 / LEAST_DECODE["attention_gflops"],
            ]
        )  # fmt: skip
    dense = 2 / flops
    wide = {"vulkan-radv": 1.5, "vulkan-amdvlk": 1.5}.get(of, 0.2)
    return np.array(
        [
            LEAST_PROMPT["token_s"], dense, wide * dense, (1 / prompt - 1) * dense, 2 / gbs, 2 / (0.35 * flops),
            LEAST_PROMPT["layer"], 2 / gbs, LEAST_PROMPT["linear_s"],
        ]
    )  # fmt: skip


def least_squares(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Without negative constants, by coordinates."""
    scale = np.sqrt((matrix**2).sum(0)) + 1e-30
    matrix = matrix / scale
    square, right = matrix.T @ matrix + 1e-9 * np.eye(matrix.shape[1]), matrix.T @ wanted
    found = np.zeros(matrix.shape[1])
    for _ in range(3000):
        before = found.copy()
        for j in range(len(found)):
            found[j] = max(0.0, found[j] + (right[j] - square[j] @ found) / square[j, j])
        if np.abs(found - before).max() < 1e-9:
            break
    return found / scale


def fitted(rows: Sequence[dict], start: np.ndarray, shapes: dict) -> np.ndarray:
    seconds = np.array([1 / row["tok_s"] for row in rows])
    matrix = np.array([parts(row, shapes) for row in rows])
    held = np.sqrt(HELD[rows[0]["phase"]])
    count = Counter((row["arch"], row["quant"]) for row in rows)
    weight, robust = np.array([count[row["arch"], row["quant"]] ** -0.5 for row in rows]), np.ones(len(rows))
    found = start
    for _ in range(5):
        each = weight * robust
        both = np.vstack([matrix / seconds[:, None] * each[:, None], np.diag(held / start)])
        found = least_squares(both, np.concatenate([each, np.full(len(start), held)]))
        robust = np.sqrt(ROUGH / np.maximum(np.abs(matrix @ found / seconds - 1), ROUGH))
    return found


def groups(rows: Sequence[dict], shapes: dict) -> dict[tuple[str, str, str], list[dict]]:
    found: dict[tuple[str, str, str], list[dict]] = defaultdict(list)
    for row in rows:
        if usable(row, shapes):
            found[row["chip"], branch(row["backend"]), row["phase"]].append(row)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def models(rows: Sequence[dict]) -> set[str]:
    return {row["arch"] for row in rows}


def is_deep(rows: Sequence[dict]) -> bool:
    return len({row["depth"] for row in rows}) > 1


def curves(rows: Sequence[dict]) -> list[list[dict]]:
    """Rows of one file and campaign, shallowest first."""
    found = defaultdict(list)
    for row in rows:
        found[row["quant"], row["series"], row["ubatch"] if row["phase"] == "prompt" else 0].append(row)
    return [sorted(curve, key=depth) for curve in found.values()]


def with_points(rows: Sequence[dict], constants: np.ndarray, shapes: dict) -> tuple[list[float], list[float]]:
    """Errors at greater depths where one shallow point was measured, and where two were (0 and near a third)."""
    one, two = [], []

    def forecast(row: dict) -> float:
        return float(parts(row, shapes) @ constants)

    for curve in curves(rows):
        first = curve[0]
        scale = 1 / first["tok_s"] / forecast(first)
        deeper = [row for row in curve if depth(row) > depth(first) + FURTHER]
        one += [abs(forecast(row) * scale * row["tok_s"] - 1) for row in deeper]
        third = min(deeper, key=lambda row: abs(depth(row) - depth(curve[-1]) / 3), default=None)
        if third is None:
            continue
        growth = (1 / third["tok_s"] - 1 / first["tok_s"]) / (forecast(third) - forecast(first))
        for row in deeper:
            if depth(row) > depth(third) + FURTHER:
                seconds = 1 / first["tok_s"] + growth * (forecast(row) - forecast(first))
                two.append(abs(seconds * row["tok_s"] - 1))
    return one, two


def told(errors: Sequence[float]) -> str:
    if not errors:
        return "none"
    median, tenth = np.median(errors), np.percentile(errors, 90)
    return f"median {median:.1%}, nine in ten {tenth:.0%}, n={len(errors)}"


def left_out(rows: Sequence[dict], shapes: dict) -> None:
    """Every model's rows by constants fitted without it."""
    errors, one, two = defaultdict(list), defaultdict(list), defaultdict(list)
    for key, of_chip in groups(rows, shapes).items():
        if len(models(of_chip)) < MODELS_TO_JUDGE or not is_deep(of_chip):
            continue
        here = []
        for model in models(of_chip):
            others = [row for row in of_chip if row["arch"] != model]
            mine = [row for row in of_chip if row["arch"] == model]
            constants = fitted(others, ruled(key, of_chip), shapes)
            here += [abs(float(parts(row, shapes) @ constants) * row["tok_s"] - 1) for row in mine]
            found = with_points(mine, constants, shapes)
            one[key[2]] += found[0]
            two[key[2]] += found[1]
        errors[key[2]] += here
        print(f"  {' '.join(key)}: {told(here)}")
    for phase, goals in GOALS.items():
        print(f"{phase}, a model left out: {told(errors[phase])} (goal {goals[0]} %)")
        print(f"    one shallow point measured: {told(one[phase])} (goal {goals[1]} %)")
        print(f"    two points measured: {told(two[phase])} (goal {goals[2]} %)")


def elsewhere(rows: Sequence[dict], other: Sequence[dict], shapes: dict) -> None:
    """Another file's rows by constants fitted to these."""
    here, errors = groups(rows, shapes), defaultdict(list)
    for key, theirs in groups(other, shapes).items():
        if len(models(here.get(key, []))) >= MODELS_TO_SHIP:
            constants = fitted(here[key], ruled(key, here[key]), shapes)
            found = [abs(float(parts(row, shapes) @ constants) * row["tok_s"] - 1) for row in theirs]
            errors[key[2]] += found
            print(f"  {' '.join(key)}: {told(found)}")
    for phase in GOALS:
        print(f"{phase}, other rows: {told(errors[phase])}")


def shipped(rows: Sequence[dict], shapes: dict) -> list[dict]:
    """The constants as chip_speeds.json has them: of chips and backends with some models and depths."""
    found, result = groups(rows, shapes), []
    for chip, of in dict.fromkeys(key[:2] for key in found):
        both = {phase: found.get((chip, of, phase), []) for phase in GOALS}
        few = any(len(models(of_phase)) < MODELS_TO_SHIP or not is_deep(of_phase) for of_phase in both.values())
        if chip not in CHIPS or of not in BRANCHES or few:
            continue
        found_by_phase = {p: fitted(both[p], ruled((chip, of, p), both[p]), shapes) for p in GOALS}
        a, p = found_by_phase["decode"], found_by_phase["prompt"]
        rates: dict[str, Any] = {
            "gbs": 1 / a[2], "gflops": 2 / p[1], "layer_s": a[1], "wide_gbs": 1 / a[3], "token_s": a[0],
            "wide_experts_gbs": 1 / max(a[7], 1e-6), "answer_attention_gflops": 2 / max(a[8], 1e-9),
            "cache_gbs": 1 / max(a[5], 1e-9), "expert_layer_s": a[4], "linear_s": a[6],
            "attention_gflops": 2 / max(p[5], 1e-9), "prompt_token_s": p[0], "prompt_linear_s": p[8],
            "prompt_wide_s": p[2], "prompt_experts_s": p[3], "piece_gb_s": p[4], "piece_layer_s": p[6],
            "piece_cache_gb_s": p[7],
        }  # fmt: skip
        all_rows = [row for of_phase in both.values() for row in of_phase]
        rounded = {name: float(f"{value:.4g}") for name, value in rates.items()}
        result.append(
            {
                "chip": CHIPS[chip],
                "backend": BRANCHES[of],
                "models": len(models(all_rows)),
                "runs": len(all_rows),
                "rates": rounded,
            }
        )
    return result


def write(constants: list[dict]) -> None:
    text = TABLE.read_text(encoding="utf-8")
    lines = ",\n".join(f"  {json.dumps(row)}" for row in constants)
    begin, end = text.index(' "fitted": ['), text.index("\n ],\n", text.index(' "fitted": ['))
    TABLE.write_text(f'{text[:begin]} "fitted": [\n{lines}{text[end:]}', encoding="utf-8")


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="judge on these instead")
    parser.add_argument("--shapes", type=Path, default=SHAPES)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    shapes = json.loads(options.shapes.read_text(encoding="utf-8"))
    rows = read(ROWS)
    if options.write:
        write(shipped(rows, shapes))
    if options.rows:
        elsewhere(rows, read(options.rows), shapes)
    else:
        left_out(rows, shapes)


if __name__ == "__main__":
    main()
