"""Plots size against KL divergence, for Tessera's files and llama.cpp's presets, as a table and a picture.

Usage: python tests/bench/quant_frontier.py [--model F.gguf] [--mixes Q3_K_M,Q4_K_M] [--kinds rows,gptq,smooth]
       [--tier balanced] [--tokens 32768] [--calibration-tokens 32768] [--llama-cpp DIR] [--threads 2]
       [--held-out TEXT...] [--also POINTS.json...] [--picture docs/quant_frontier.svg] [--work DIR]

Kind smooth is gptq of the smoothed model, as in tier max.
Every text of --held-out gives a table; the picture shows the first one. --also adds points of earlier runs
(DIR/points.json) to both, because tier max is a separate run. The forecast is the plan's own expectation.
Presets are built with the same importance matrix. With --llama-cpp (a folder with llama-quantize and
llama-perplexity) these tools build and evaluate everything, otherwise Tessera's own, which agree with them.
"""

import argparse
import json
import math
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec

from quantize.child import run_task
from quantize.files.gguf_file import read_gguf
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata, file_bytes, header, scalar
from quantize.ggml_types import MEASURED, USUAL, GgmlType
from quantize.job.round_plan import round_plan
from quantize.measure.run import measure
from quantize.measure.smoothing import SmoothRequest
from quantize.measure.verify import verify
from quantize.measurements import LossMeasurements, Measured, MeasureRequest, RoundRequest, VerifyRequest
from quantize.plan.llama_cpp_presets import stock_types
from quantize.plan.plan import PlanInput, make_plan
from quantize.plan.speed import model_spec
from quantize.types import EvidenceRef, SizeTarget

MIXES = "Q2_K,Q3_K_M,IQ4_XS,Q4_K_S,Q4_K_M,Q5_K_M"
COLOURS = {"stock": "#888888", "rows": "#c2750b", "gptq": "#1f6fb2", "smooth": "#177245"}
LABELS = {
    "stock": "stock mix",
    "rows": "ours, ggml's rounding",
    "gptq": "ours, GPTQ",
    "smooth": "ours, smoothed, GPTQ",
}


@dataclass(frozen=True)
class Point:
    """One file on one text."""

    text: str
    mix: str
    kind: str
    bytes: int
    kld: float
    low: float
    high: float
    p99: float
    top1: float
    perplexity: float
    forecast: float


@dataclass(frozen=True)
class Row:
    """One file to evaluate, and its expected KL divergence."""

    mix: str
    kind: str
    path: Path
    forecast: float


@contextmanager
def told(what: str) -> Iterator[None]:
    """Print the wall-clock and CPU seconds of a task, including children."""
    wall, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    yield
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = now.ru_utime + now.ru_stime - cpu.ru_utime - cpu.ru_stime
    print(f"{what} in {time.monotonic() - wall:.0f} s, {spent:.0f} s of processors", flush=True)


def expected(damage: dict[str, dict[str, float]], types: dict[str, str]) -> float:
    """The measured losses of a recipe's tensors, added up."""
    return sum(row[types[name]] for name, row in damage.items() if types[name] in row)


def types_for(model: Path, evidence: LossMeasurements, kind: str, limit: int, head: int) -> dict[str, str]:
    """Tessera's plan for a budget, decided by loss alone."""
    question = PlanInput(
        model=model_spec(read_gguf(model)),
        damage=evidence.damage(kind),
        evidence=EvidenceRef(tier=evidence.tier, has_imatrix=True),
        header_bytes=head,
        speed_price=0.0,
    )
    return make_plan(question, SizeTarget(kind="budget", limit_bytes=limit)).types


def smoothed(request: MeasureRequest, out: Path) -> MeasureRequest:
    """The same request for the model with smoothed inputs."""
    out.unlink(missing_ok=True)
    found = run_task("smooth", SmoothRequest(measure=request, out=out), lambda _p: None, lambda: False)
    print(f"{found['changed']} of {found['seams']} inputs evened out, {found['kld']:.1e} nats away", flush=True)
    return msgspec.structs.replace(request, source=out)


def write(out: Path, request: MeasureRequest, measured: Measured, types: dict[str, str], kind: str) -> None:
    """Round and write one file."""
    file = read_gguf(request.source)
    slots = [TensorSlot(t.name, t.shape, GgmlType[types[t.name]]) for t in file.tensors]
    changed = {t.name: types[t.name] for t in file.tensors if types[t.name] != t.ggml_type.name}
    imatrix = measured.imatrix if kind == "stock" else None
    task = RoundRequest(measure=request, types=changed, rounding=kind, imatrix=imatrix)
    packed = {p.name: p.blocks for p in round_plan(task, lambda _p: None, lambda: False)}
    out.unlink(missing_ok=True)
    writer = GgufWriter(out, {**copied_metadata(file), "general.quantization_version": scalar(2)}, slots)
    for tensor in file.tensors:
        writer.write(tensor.name, [packed.get(tensor.name, file.tensor_bytes(tensor))])
    writer.close()


def judge_by_llama_cpp(tools: Path, reference: Path, text: Path, chunks: int, files: list[Path]) -> list[dict]:
    """Figures of llama-perplexity. It sometimes ends without its statistics, so it is run up to three times."""
    base = files[0].with_name("reference.logits")
    env = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    common = ["-f", str(text), "-c", "512", "--chunks", str(chunks), "-t", "2", "--kl-divergence-base", str(base)]
    command = [str(tools / "llama-perplexity")]
    subprocess.run([*command, "-m", str(reference), *common], check=True, capture_output=True, env=env)
    patterns = {
        "kld": r"Mean\s+KLD:\s+([-\d.]+)",
        "se": r"Mean\s+KLD:\s+[-\d.]+\s+±\s+([-\d.]+)",
        "p99": r"99\.0%\s+KLD:\s+([-\d.]+)",
        "top1": r"Same top p:\s+([-\d.]+)",
        "perplexity": r"Mean PPL\(Q\)\s+:\s+([-\d.]+)",
    }
    found = []
    for path in files:
        for _ in range(3):
            run = subprocess.run(
                [*command, "-m", str(path), *common, "--kl-divergence"],
                check=False, capture_output=True, text=True, env=env,
            )  # fmt: skip
            values = {k: re.search(p, run.stdout + run.stderr) for k, p in patterns.items()}
            if all(values.values()):
                break
        found.append({k: float(m.group(1)) for k, m in values.items()})
    base.unlink()
    return found


def build(args: argparse.Namespace, request: MeasureRequest) -> list[Row]:
    """Measure, and write every file."""
    kinds = args.kinds.split(",")
    with told("measured"):
        measured = measure(request, lambda _p: None, lambda: False)
    made = dict.fromkeys(kinds, (request, measured))
    if "smooth" in kinds:
        with told("smoothed and measured"):
            even = smoothed(request, args.work / "smooth.gguf")
            made["smooth"] = even, measure(even, lambda _p: None, lambda: False)
    file = read_gguf(args.model)
    spec = model_spec(file)
    rows: list[Row] = []
    for mix in args.mixes.split(","):
        stock = {n: t.name for n, t in stock_types(spec, mix, has_imatrix=True).items()}
        path = args.work / f"{mix}-stock.gguf"
        if args.llama_cpp:
            quantize = [str(args.llama_cpp / "llama-quantize"), "--imatrix", str(measured.imatrix)]
            subprocess.run(
                [*quantize, str(args.model), str(path), mix, str(args.threads)], check=True, capture_output=True
            )
        else:
            write(path, request, measured, stock, "stock")
        rows.append(Row(mix, "stock", path, expected(measured.evidence.damage("stock"), stock)))
        slots = [TensorSlot(t.name, t.shape, t.ggml_type) for t in file.tensors]
        for kind in kinds:
            limit, rounding = path.stat().st_size, "gptq" if kind == "smooth" else kind
            mine, known = made[kind]
            metadata = copied_metadata(read_gguf(mine.source))  # a smoothed one states how
            head = len(header({**metadata, "general.quantization_version": scalar(2)}, slots))
            types = types_for(args.model, known.evidence, rounding, limit, head)
            ours = args.work / f"{mix}-{kind}.gguf"
            with told(f"{mix} {kind}: rounded and written"):
                write(ours, mine, known, types, rounding)
            rows.append(Row(mix, kind, ours, expected(known.evidence.damage(rounding), types)))
            slots = [TensorSlot(t.name, t.shape, GgmlType[types[t.name]]) for t in file.tensors]
            assert ours.stat().st_size == file_bytes(head, slots) <= limit
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=ROOT / "assets/models/spark-f16.gguf")
    parser.add_argument("--mixes", default=MIXES)
    parser.add_argument("--kinds", default="rows,gptq,smooth")
    parser.add_argument("--tier", default="balanced")
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--calibration-tokens", type=int, default=32_768)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--smallest", action="store_true", help="measure the types of two bits too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--held-out", type=Path, nargs="+", default=[ROOT / "assets/text/heldout.txt"])
    parser.add_argument("--also", type=Path, nargs="+", default=[])
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--work", type=Path, default=Path("build/quant_frontier"))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    request = MeasureRequest(
        source=args.model,
        calibration=ROOT / "assets/text/calibration.txt",
        cache_dir=args.work / "cache",
        tier=args.tier,
        threads=args.threads,
        max_tokens=args.calibration_tokens,
        qtypes=tuple(t.name for t in MEASURED if t in USUAL or (args.smallest and not t.traits.if_fast)),
    )
    rows = build(args, request)
    points = [Point(**p) for path in args.also for p in json.loads(path.read_text())]
    for text in args.held_out:
        with told(f"judged on {text.name}"):
            points += judge(args, rows, text)
    for text in dict.fromkeys(p.text for p in points):
        table([p for p in points if p.text == text])
    (args.work / "points.json").write_text(json.dumps([asdict(p) for p in points], indent=1))
    if args.picture:
        first = [p for p in points if p.text == args.held_out[0].name]
        args.picture.write_text(picture(first, args.model.stem), encoding="utf-8")


def judge(args: argparse.Namespace, rows: list[Row], text: Path) -> list[Point]:
    """Figures of all files."""
    files = [row.path for row in rows]
    if args.llama_cpp:
        found = judge_by_llama_cpp(args.llama_cpp, args.model, text, args.tokens // 512, files)
        return [
            Point(
                text.name, row.mix, row.kind, row.path.stat().st_size,
                v["kld"], v["kld"] - 1.96 * v["se"], v["kld"] + 1.96 * v["se"],
                v["p99"], v["top1"] / 100, v["perplexity"], row.forecast,
            )
            for row, v in zip(rows, found, strict=True)
        ]  # fmt: skip
    threads = args.threads
    reports = verify(
        VerifyRequest(reference=args.model, files=tuple(files), text=text, max_tokens=args.tokens, threads=threads),
        lambda _p: None,
        lambda: False,
    )
    return [
        Point(
            text.name, row.mix, row.kind, r.file_bytes, r.kld_mean.value, r.kld_mean.low, r.kld_mean.high,
            r.kld_p99, r.top1_agreement_frac.value, r.perplexity.value, row.forecast,
        )
        for row, r in zip(rows, reports, strict=True)
    ]  # fmt: skip


def table(points: list[Point]) -> None:
    """Print the results, with the ratio to the preset of the same size."""
    stock = {p.mix: p.kld for p in points if p.kind == "stock"}
    print(f"\n{points[0].text}\n")
    print("| size of | kind | bytes | KLD mean [95 %] | of stock | of forecast | KLD 99 % | top-1 % | PPL |")
    print("|---|---|---|---|---|---|---|---|---|")
    for p in points:
        print(
            f"| {p.mix} | {p.kind} | {p.bytes} | {p.kld:.5f} [{p.low:.5f}, {p.high:.5f}] "
            f"| {p.kld / stock[p.mix]:.3f} | {p.kld / p.forecast:.2f} "
            f"| {p.p99:.4f} | {100 * p.top1:.2f} | {p.perplexity:.3f} |"
        )


def picture(points: list[Point], title: str) -> str:
    """An SVG of bytes (linear) against mean KL divergence (logarithmic)."""
    width, height, left, right, top, bottom = 760, 460, 70, 60, 40, 50
    sizes = [p.bytes / 1e6 for p in points]
    logs = [math.log10(p.kld) for p in points]
    x0, x1 = min(sizes) - 0.1, max(sizes) + 0.1
    y0, y1 = math.floor(min(logs) * 4) / 4, math.ceil(max(logs) * 4) / 4

    def at(size: float, log: float) -> tuple[float, float]:
        x = left + (size - x0) / (x1 - x0) * (width - left - right)
        return x, top + (y1 - log) / (y1 - y0) * (height - top - bottom)

    frame = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    out = [
        f'<svg {frame} font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{left}" y="22" font-size="15">{title}: damage at a given size (lower is better)</text>',
    ]
    for tick in [m * 10.0**e for e in range(-5, 1) for m in (1, 2, 5)]:
        if y0 <= math.log10(tick) <= y1:
            y = at(x0, math.log10(tick))[1]
            out.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
            out.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for size in sorted({round(s, 2) for s, p in zip(sizes, points, strict=True) if p.kind == "stock"}):
        x = at(size, y0)[0]
        out.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{size:.2f}</text>')
    out.append(f'<text x="{(left + width) / 2}" y="{height - 10}" text-anchor="middle">megabytes</text>')
    out.append(
        f'<text x="16" y="{height / 2}" transform="rotate(-90 16 {height / 2})" text-anchor="middle">'
        "mean KL divergence from F16, held-out text (nats)</text>"
    )
    kinds = list(dict.fromkeys(p.kind for p in points))
    for row, kind in enumerate(kinds):
        mine = sorted((p for p in points if p.kind == kind), key=lambda p: p.bytes)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(p.bytes / 1e6, math.log10(p.kld)) for p in mine))
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[kind]}" stroke-width="2"/>')
        for p in mine:
            x, y = at(p.bytes / 1e6, math.log10(p.kld))
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[kind]}"/>')
            if kind == "stock":
                out.append(f'<text x="{x + 7:.1f}" y="{y - 6:.1f}" fill="#444444">{p.mix}</text>')
        y = top + 14 + 18 * row
        out.append(f'<circle cx="{width - 230}" cy="{y}" r="5" fill="{COLOURS[kind]}"/>')
        out.append(f'<text x="{width - 218}" y="{y + 4}">{LABELS[kind]}</text>')
    return "\n".join([*out, "</svg>\n"])


if __name__ == "__main__":
    main()
