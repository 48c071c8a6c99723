"""Fits seconds per token over depth to published runs of chips, and reports the error for a model that is left out.

`python tests/bench/depth_speeds.py [--rows FILE] [--shapes FILE] [--write]`

Rows are tests/data/speeds/depths.jsonl. With `--rows` the constants fitted to these are evaluated on another file
with the same fields. `--write` stores the constants of chips in the table of chips in chip_speeds.json.

For each chip, backend and driver branch, least squares with a few robust rounds finds non-negative constants for
the parts of a token's time (weights, layers, experts, cache, attention). Each file counts once. Two errors count,
both relative to the row's time: that of each row, and that of each curve's growth from its first point. A part
that the runs hardly determine stays near the rule for the chip's family, where the fit starts.
"""

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
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
from engine.placement.speed import (
    DENSE_PIECE,
    NARROW_HEADS,
    UBATCH_EXPONENT,
    USUAL_UBATCH,
    beyond_cached_mask,
)

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
# The driver branch that a backend of this program is; older ones are fitted and evaluated, not shipped.
BRANCHES = {
    "vulkan-radv": "vulkan",
    "vulkan-anv": "vulkan",
    "rocm-7": "rocm",
    "cuda": "cuda",
    "metal": "metal",
    "sycl": "sycl",
}
WIDE, BRAIN = re.compile(r"BF16|F16|F32"), re.compile(r"BF16")
# Weight of a part's constant staying close to the rule, relative to one file's rows; answers vary less.
HELD = {"decode": 0.6, "prompt": 0.003}
# Errors beyond this count less.
ROUGH = 0.1
# Weight of a row's growth from the first point of its curve, against that of its own time.
GROWTH = 1.0
MODELS_TO_JUDGE, MODELS_TO_SHIP = 6, 4
# Where the prompt's attention begins, as shares of the time of its multiply-adds with heads of 128 values: seconds
# per head and cached token, of a mask beyond the caches (only RADV is known for it), and of wide heads.
PAIR_SHARE, WIDE_SHARE = 0.1, 0.1
MASK_SHARE = {"vulkan-radv": 0.1}
MASK_SHARE_ELSEWHERE = 0.02
# A mixture's 16-bit weights cost more than their bytes, as seconds of the whole bandwidth. Source: runs of 35B-A3B
# and GLM-4.7-Flash in BF16 on gfx1151: 156 and 139 GB/s with ROCm, 64 and 57 with RADV.
WIDE_EXPERTS, WIDE_EXPERTS_ROCM = 1.5, 0.5
# The cost of unpacking a weight of fewer than 16 bits, relative to reading a byte.
UNPACK_SHARE = 0.15
# SYCL has no native products for BF16. Source: runs of a B70, dense models: 91 to 97 GB/s of 608.
SLOW_BRAIN = {"sycl": 5.0}
GOALS = {"decode": (15, 4, 2), "prompt": (20, 10, 4)}
DEEP_ENOUGH = 15_000  # tokens that a curve must reach to predict the time of a whole day
FURTHER = 2000  # tokens between a measured point and one forecast from it
# Minimum constants, if the rule lacks such a part.
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
    # Forks, and a kind of attention that llama.cpp is not built with any more.
    other_builds = any(word in row["engine"] for word in ("(fork", "(rocwmma"))
    clean = row["engine"].startswith("llama.cpp") and (
        note.startswith("unpatched") or not any(word in note for word in strange)
    )
    clean = clean and not other_builds
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
    """The factor of each constant, in the order of `ruled`."""
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
                shape["active_b"] * (not wide),
            ]
        )  # fmt: skip
    piece = min(row["ubatch"] or USUAL_UBATCH, row["n"])
    heads, cached = shape["heads"] / 1e9, shape["full"] * at + shape["swa"] * min(at, shape["win"])
    width = shape["mla"][0] if shape["mla"] else shape["hd"]
    wide_heads = attention_gmac({**shape, "swa": 0}, at) if width > NARROW_HEADS else 0
    more = shape["active_b"] * MIXTURE_PROMPTS[kind] * (USUAL_UBATCH / piece) ** UBATCH_EXPONENT if mixture else 0
    weights = read * (1 if mixture else DENSE_PIECE)
    return np.array(
        [
            1, shape["active_b"], shape["active_b"] * brain, more, weights / piece, attention_gmac(shape, at),
            shape["layers"] / piece, cache_gb(shape, at) / piece, shape["lin"],
            heads * cached, heads * shape["full"] * beyond_cached_mask(at, piece), wide_heads,
        ]
    )  # fmt: skip


def ruled(key: tuple[str, str, str], rows: Sequence[dict]) -> np.ndarray:
    """The constants with which the fit starts, from the rule for the chip's family."""
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
        wide_experts = WIDE_EXPERTS_ROCM if of.startswith("rocm") else WIDE_EXPERTS
        return np.array(
            [
                LEAST_DECODE["token_s"], layer_s, 1 / reads, SLOW_BRAIN.get(of, 1) * 0.9 / reads, expert_s,
                1 / (0.75 * reads), LEAST_DECODE["linear_s"], wide_experts / gbs,
                2 / LEAST_DECODE["attention_gflops"], UNPACK_SHARE / gbs,
            ]
        )  # fmt: skip
    dense, attention = 2 / flops, 2 / (0.35 * flops)
    pair = attention * 2 * NARROW_HEADS
    wide = {"vulkan-radv": 1.5, "vulkan-amdvlk": 1.5}.get(of, 0.2)
    return np.array(
        [
            LEAST_PROMPT["token_s"], dense, wide * dense, (1 / prompt - 1) * dense, 2 / gbs, attention,
            LEAST_PROMPT["layer"], 2 / gbs, LEAST_PROMPT["linear_s"],
            PAIR_SHARE * pair, MASK_SHARE.get(of, MASK_SHARE_ELSEWHERE) * pair, WIDE_SHARE * attention,
        ]
    )  # fmt: skip


def least_squares(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Without negative constants: Lawson and Hanson's active sets on the normal equations."""
    scale = np.sqrt((matrix**2).sum(0)) + 1e-30
    matrix = matrix / scale
    square, right = matrix.T @ matrix + 1e-9 * np.eye(matrix.shape[1]), matrix.T @ wanted
    found, used = np.zeros(len(right)), np.zeros(len(right), bool)
    for _ in range(5 * len(right)):
        gain = np.where(used, -1, right - square @ found)
        if used.all() or gain.max() <= 1e-10:
            break
        used[gain.argmax()] = True
        while True:
            trial = np.zeros(len(right))
            trial[used] = np.linalg.solve(square[np.ix_(used, used)], right[used])
            falls = used & (trial <= 0)
            if not falls.any():
                found = trial
                break
            step = (found[falls] / (found[falls] - trial[falls] + 1e-300)).min()
            found = found + step * (trial - found)
            used &= found > 1e-12
            found[~used] = 0
    return found / scale


def fitted(rows: Sequence[dict], start: np.ndarray, shapes: dict) -> np.ndarray:
    seconds = np.array([1 / row["tok_s"] for row in rows])
    matrix = np.array([parts(row, shapes) for row in rows])
    held = np.sqrt(HELD[rows[0]["phase"]])
    count = Counter((row["arch"], row["quant"]) for row in rows)
    weight = np.array([count[row["arch"], row["quant"]] ** -0.5 for row in rows])
    at = {id(row): number for number, row in enumerate(rows)}
    grown = np.array([(at[id(row)], at[id(c[0])]) for c in curves(rows) for row in deeper(c)]).reshape(-1, 2)
    last, first = grown.T.astype(int)
    growth, grew = matrix[last] - matrix[first], seconds[last] - seconds[first]
    # The rows, the growth of curves, and the rule; each relative to its time.
    all_parts = np.vstack([matrix / seconds[:, None], growth / seconds[last, None], np.diag(1 / start)])
    wanted = np.concatenate([np.ones(len(rows)), grew / seconds[last], np.ones(len(start))])
    each = np.concatenate([weight, GROWTH * weight[last], np.full(len(start), held)])
    robust, found = np.ones(len(wanted)), start
    for _ in range(5):
        found = least_squares(all_parts * (each * robust)[:, None], wanted * each * robust)
        robust = np.sqrt(ROUGH / np.maximum(np.abs(all_parts @ found - wanted), ROUGH))
        robust[-len(start) :] = 1
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
        size = row["ubatch"] if row["phase"] == "prompt" else 0
        found[row["arch"], row["quant"], row["series"], size].append(row)
    return [sorted(curve, key=depth) for curve in found.values()]


def deeper(curve: Sequence[dict]) -> list[dict]:
    """The rows of a curve that are well beyond its first one."""
    return [row for row in curve if depth(row) > depth(curve[0]) + FURTHER]


def with_points(rows: Sequence[dict], constants: np.ndarray, shapes: dict) -> tuple[list[float], list[float]]:
    """Errors at greater depths with one measured shallow point, and with two (0 and near a third)."""
    one, two = [], []

    def forecast(row: dict) -> float:
        return float(parts(row, shapes) @ constants)

    for curve in curves(rows):
        first = curve[0]
        scale = 1 / first["tok_s"] / forecast(first)
        later = deeper(curve)
        one += [abs(forecast(row) * scale * row["tok_s"] - 1) for row in later]
        third = min(later, key=lambda row: abs(depth(row) - depth(curve[-1]) / 3), default=None)
        if third is None:
            continue
        growth = (1 / third["tok_s"] - 1 / first["tok_s"]) / (forecast(third) - forecast(first))
        for row in later:
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


def chips_left_out(rows: Sequence[dict], shapes: dict) -> None:
    """Every chip's rows by the rule for its family alone, as if none of its rows were known."""
    errors, one, two = defaultdict(list), defaultdict(list), defaultdict(list)
    for key, of_chip in groups(rows, shapes).items():
        if key[0] in CHIPS and key[1] in BRANCHES:
            constants = ruled(key, of_chip)
            errors[key[2]] += [abs(float(parts(row, shapes) @ constants) * row["tok_s"] - 1) for row in of_chip]
            found = with_points(of_chip, constants, shapes)
            one[key[2]] += found[0]
            two[key[2]] += found[1]
    for phase in GOALS:
        print(f"{phase}, a chip left out: {told(errors[phase])}")
        print(f"    one shallow point measured: {told(one[phase])}")
        print(f"    two points measured: {told(two[phase])}")


def seconds_between(rows: Sequence[dict]) -> Callable[[float], float]:
    """Seconds per token of published rows over depth: straight lines between their medians, and beyond."""
    found = defaultdict(list)
    for row in rows:
        found[depth(row)].append(1 / row["tok_s"])
    depths = np.array(sorted(found))
    seconds = np.array([np.median(found[at]) for at in depths])

    def at_depth(at: float) -> float:
        above = int(np.clip(np.searchsorted(depths, at), 1, len(depths) - 1))
        share = max(0.0, (at - depths[above - 1]) / (depths[above] - depths[above - 1]))
        return float(seconds[above - 1] + share * (seconds[above] - seconds[above - 1]))

    return at_depth


def day(read_s: Callable[[float], float], write_s: Callable[[float], float]) -> float:
    """Seconds of an agent's day: 20,000 tokens read, then 30 turns of 1,300 read and 200 written."""
    seconds = sum(500 * read_s(at + 250) for at in range(0, 20_000, 500))
    for at in range(20_000, 65_000, 1500):
        seconds += 1300 * read_s(at + 650) + 200 * write_s(at + 1400)
    return seconds


def days(rows: Sequence[dict], judged: Sequence[dict], shapes: dict, *, without_model: bool) -> None:
    """The slow-down of an agent's day where a file's backend and ubatch are chosen by forecast."""
    known, found, losses = groups(rows, shapes), groups(judged, shapes), []
    for chip, model in sorted({(key[0], row["arch"]) for key, of in found.items() for row in of}):
        choices: dict[str, dict[tuple[str, int], list[tuple[float, float]]]] = {}
        for of in sorted(name for c, name, phase in found if c == chip and phase == "prompt" and name in BRANCHES):
            constants = {}
            for phase in GOALS:
                learned_from = known.get((chip, of, phase), [])
                others = [row for row in learned_from if not without_model or row["arch"] != model]
                if len(models(others)) >= MODELS_TO_SHIP - without_model:
                    constants[phase] = fitted(others, ruled((chip, of, phase), learned_from), shapes)
            if len(constants) == len(GOALS):
                both = {p: [r for r in found.get((chip, of, p), []) if r["arch"] == model] for p in GOALS}
                for (quant, size), took in days_of(both, constants, shapes):
                    choices.setdefault(quant, {}).setdefault((of, size), []).append(took)
        for quant, of_file in sorted(choices.items()):
            if len(of_file) > 1:
                forecast, real = ({c: min(t[i] for t in took) for c, took in of_file.items()} for i in (0, 1))
                chosen = min(forecast, key=lambda choice: forecast[choice])
                losses.append(real[chosen] / min(real.values()) - 1)
                print(f"  {chip} {model} {quant}: {chosen[0]}, ubatch {chosen[1]} loses {losses[-1]:.1%}")
    if losses:
        print(f"an agent's day loses {np.mean(losses):.1%} in the mean, at most {max(losses):.0%}, n={len(losses)}")


def days_of(
    rows: dict[str, list[dict]], constants: dict[str, np.ndarray], shapes: dict
) -> Iterator[tuple[tuple[str, int], tuple[float, float]]]:
    """(type of the file, ubatch) with the seconds of a day by forecast and by published rows."""
    reads, writes = rows["prompt"], rows["decode"]
    for quant, size, driver in sorted({(r["quant"], r["ubatch"], r["backend"]) for r in reads}):
        read = [r for r in reads if (r["quant"], r["ubatch"], r["backend"]) == (quant, size, driver)]
        written = [r for r in writes if (r["quant"], r["backend"]) == (quant, driver)]
        if max(map(depth, read)) < DEEP_ENOUGH or not is_deep(read) or not is_deep(written):
            continue

        def at(row: dict, n: int) -> Callable[[float], float]:
            here = constants[row["phase"]]
            return lambda middle: float(parts({**row, "depth": middle - n / 2, "n": n}, shapes) @ here)

        forecast = day(at(read[-1], size), at(written[-1], 1))
        yield (quant, size), (forecast, day(seconds_between(read), seconds_between(written)))


def elsewhere(rows: Sequence[dict], other: Sequence[dict], shapes: dict) -> None:
    """Another file's rows by constants fitted to these."""
    here, errors, one, two = groups(rows, shapes), defaultdict(list), defaultdict(list), defaultdict(list)
    for key, theirs in groups(other, shapes).items():
        if len(models(here.get(key, []))) >= MODELS_TO_SHIP:
            constants = fitted(here[key], ruled(key, here[key]), shapes)
            found = [abs(float(parts(row, shapes) @ constants) * row["tok_s"] - 1) for row in theirs]
            errors[key[2]] += found
            pointed = with_points(theirs, constants, shapes)
            one[key[2]] += pointed[0]
            two[key[2]] += pointed[1]
            print(f"  {' '.join(key)}: {told(found)}")
    for phase in GOALS:
        print(f"{phase}, other rows: {told(errors[phase])}")
        print(f"    one shallow point measured: {told(one[phase])}")
        print(f"    two points measured: {told(two[phase])}")


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
            "gbs": 1 / a[2], "gflops": 2 / p[1], "layer_s": a[1], "unpack_s": a[9], "wide_gbs": 1 / a[3],
            "token_s": a[0], "wide_experts_gbs": 1 / max(a[7], 1e-6),
            "answer_attention_gflops": 2 / max(a[8], 1e-9),
            "cache_gbs": 1 / max(a[5], 1e-9), "expert_layer_s": a[4], "linear_s": a[6],
            "attention_gflops": 2 / max(p[5], 1e-9), "prompt_token_s": p[0], "prompt_linear_s": p[8],
            "prompt_wide_s": p[2], "prompt_experts_s": p[3], "piece_gb_s": p[4], "piece_layer_s": p[6],
            "piece_cache_gb_s": p[7], "prompt_pair_s": p[9], "prompt_mask_s": p[10], "prompt_wide_heads_s": p[11],
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
        other = read(options.rows)
        elsewhere(rows, other, shapes)
        days(rows, other, shapes, without_model=False)
    else:
        left_out(rows, shapes)
        chips_left_out(rows, shapes)
        days(rows, rows, shapes, without_model=True)


if __name__ == "__main__":
    main()
