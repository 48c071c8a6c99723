"""Compares files of equal size on four kinds of text: Tessera's, and llama.cpp's presets with an importance matrix.

Usage: python tests/bench/against_presets.py MODEL-F16.gguf [--llama-cpp DIR] [--presets Q3_K_M,Q4_K_M]
       [--tier balanced] [--tokens 4096] [--chunks 64] [--threads 2] [--work DIR] [--kinds chat,prose]
       [--text NAME=FILE]... [--earlier CHECKOUT]

DIR holds llama-imatrix and llama-quantize of any build: their newest recipes are what is compared. Without it,
`tessera quantize --type` writes the preset, with the importance matrix that was measured for our file. Both sides
are calibrated with assets/text/calibration.txt. Ours is made by `tessera quantize` for the bytes of the preset's
file; a difference above 1 % ends the comparison. The texts are prose (the documentation), code (the program), chats
(assets/text/heldout.txt) and tool calls (the definitions and requests of `tessera certify`). None of them is in the
calibration text. `--kinds` picks some of them, `--text` adds files of your own. CHECKOUT is the project at an
earlier commit, whose file of the same bytes is compared with ours too.

Not compared: Unsloth's dynamic files, whose choice of types is not published as a table, and auto-round, which
needs torch.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from app.evals.tool_calls.suite import suite
from quantize.files.channel_scales import KEY, read_channel_scales
from quantize.files.gguf_file import read_gguf
from quantize.job.source import unscaled_imatrix
from quantize.measure.verify import verify
from quantize.measurements import VerifyRequest
from quantize.types import CALIBRATION, HELD_OUT, FileReport, Interval
from tests.bench.recording import record

_SAME_BYTES = 0.01
_CHARACTERS = 400_000


def texts(work: Path) -> dict[str, Path]:
    """The four texts, written to `work`."""
    docs = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    prose = "\n".join(line for line in docs.splitlines() if line and line[0].isalpha())
    code = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "engine").rglob("*.py")))
    calls = "\n".join(
        f"<|im_start|>system\nTools: {json.dumps(case.tools)}<|im_end|>\n"
        + "\n".join(
            f"<|im_start|>{message['role']}\n{message.get('content') or json.dumps(message)}<|im_end|>"
            for message in case.messages
        )
        for case in suite()
    )
    found = {}
    for name, text in (("prose", prose), ("code", code), ("tool calls", calls)):
        found[name] = work / f"{name.replace(' ', '_')}.txt"
        found[name].write_text(text[:_CHARACTERS], encoding="utf-8")
    return {**found, "chat": HELD_OUT}


def preset_file(args: argparse.Namespace, preset: str) -> Path:
    """llama.cpp's file, made by its own tools or, without them, by Tessera."""
    out: Path = args.work / f"{preset}.gguf"
    if out.exists():
        return out
    imatrix = args.work / "imatrix.gguf"
    if args.llama_cpp is None:
        size = _tessera(args, ROOT, args.model, "--type", preset, "--tier", "instant", "--plan-only", "--json")
        ours = our_file(args, preset, json.loads(size)["plan"]["file_bytes"])
        if not imatrix.exists():
            (measured,) = (args.work / f"home-{ROOT.name}").rglob("imatrix.gguf")
            scales = read_channel_scales(str(read_gguf(ours).metadata.get(KEY, "")))
            unscaled_imatrix(measured, scales.columns if scales else {}, imatrix)
        _tessera(
            args, ROOT, args.model, out, "--type", preset, "--tier", "instant", "--imatrix", imatrix, "--no-verify"
        )
        return out
    if not imatrix.exists():
        _run(
            args.llama_cpp / "llama-imatrix",
            *("-m", args.model, "-f", CALIBRATION, "-o", imatrix, "-c", 512, "-t", args.threads),
            *("--chunks", args.chunks),
        )
    _run(args.llama_cpp / "llama-quantize", "--imatrix", imatrix, args.model, out, preset, args.threads)
    return out


def our_file(args: argparse.Namespace, preset: str, limit: int, checkout: Path = ROOT) -> Path:
    """Tessera's file of this size, made like a user's by the project at `checkout`."""
    out: Path = args.work / f"{preset}-{checkout.name}-{args.tier}.gguf"
    if not out.exists():
        started, before = time.monotonic(), _processor_seconds()
        _tessera(args, checkout, args.model, out, "--budget", f"{limit}B", "--tier", args.tier, "--no-verify")
        print(
            f"{out.name}: {time.monotonic() - started:.0f} s, {_processor_seconds() - before:.0f} s of processors",
            flush=True,
        )
    return out


def _processor_seconds() -> float:
    """User and system seconds of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _tessera(args: argparse.Namespace, checkout: Path, *words: object) -> str:
    """Run `tessera quantize` of a checkout, with a separate home folder; returns its output."""
    home = args.work / f"home-{checkout.name}"
    environment = {**os.environ, "TESSERA_HOME": str(home)}
    command = (sys.executable, "-m", "app", "quantize", *words, "--threads", args.threads, "--yes")
    return _run(*command, cwd=checkout, env=environment)


def _run(*command: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed: {done.stderr[-1000:]}")
    return done.stdout


def show(args: argparse.Namespace, preset: str, text: str, files: dict[str, FileReport]) -> None:
    """Print and record the figures of both files on one text."""
    for maker, report in files.items():
        kld, top1, perplexity = report.kld_mean, report.top1_agreement_frac, report.perplexity
        print(
            f"{preset:<8}{text:<12}{maker:<12}{report.file_bytes:>12,} bytes  mean {kld.value:.5f} "
            f"({kld.low:.5f} to {kld.high:.5f})  p99.9 {report.kld_p999:.3f}  same top token {top1.value:.1%}  "
            f"perplexity {perplexity.value:.3f} (original {report.reference_perplexity:.3f})",
            flush=True,
        )
        for metric, value, unit, interval in (
            ("mean KL divergence", kld.value, "nats per token", kld),
            ("99.9th percentile of KL divergence", report.kld_p999, "nats per token", None),
            ("same top token", 100 * top1.value, "%", (100 * top1.low, 100 * top1.high)),
            ("perplexity", perplexity.value, "", perplexity),
        ):
            _record(args, metric, value, unit, interval, preset, text, report, file=maker)


def show_share(args: argparse.Namespace, preset: str, text: str, report: FileReport, of: str) -> None:
    """Print and record the loss of Tessera's file as a share of another file's of these bytes."""
    share = report.ratio
    assert share is not None
    print(
        f"{preset:<8}{text:<12}share of {of}: {share.value:.3f} ({share.low:.3f} to {share.high:.3f})", flush=True
    )
    metric = f"share of the mean KL divergence of {of}"
    _record(args, metric, share.value, "", (share.low, share.high), preset, text, report)


def _record(
    args: argparse.Namespace,
    metric: str,
    value: float,
    unit: str,
    interval: Interval | tuple[float, float] | None,
    preset: str,
    text: str,
    report: FileReport,
    **more: str,
) -> None:
    low, high = (interval.low, interval.high) if isinstance(interval, Interval) else interval or (0.0, 0.0)
    record(
        "against_presets",
        metric,
        _short(value),
        unit,
        interval=(_short(low), _short(high)) if interval else None,
        model=args.model.stem,
        preset=preset,
        text=text,
        tier=args.tier,
        bytes=report.file_bytes,
        tokens=report.tokens,
        **more,
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--presets", default="Q3_K_M,Q4_K_M")
    parser.add_argument("--tier", default="balanced")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kinds", default="prose,code,tool calls,chat")
    parser.add_argument("--earlier", type=Path)
    parser.add_argument("--text", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--work", type=Path, default=Path("build/against_presets"))
    args = parser.parse_args()
    args.model, args.work = args.model.resolve(), args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    kinds = args.kinds.split(",")
    judged = {name: path for name, path in texts(args.work).items() if name in kinds}
    judged |= {name: Path(path) for name, _, path in (each.partition("=") for each in args.text)}
    for preset in args.presets.split(","):
        theirs = preset_file(args, preset)
        limit = theirs.stat().st_size
        ours = our_file(args, preset, limit)
        if abs(ours.stat().st_size / limit - 1) > _SAME_BYTES:
            raise SystemExit(f"{ours} and {theirs} differ by more than 1 % in size")
        rivals = {"llama.cpp": theirs}
        if args.earlier:
            rivals["the earlier commit"] = our_file(args, preset, limit, args.earlier.resolve())
        for name, text in judged.items():
            # The share is relative to the last file.
            for rival, path in rivals.items():
                task = VerifyRequest(
                    reference=args.model,
                    files=(ours, path),
                    text=text,
                    max_tokens=args.tokens,
                    threads=args.threads,
                )
                mine, other = verify(task, lambda _: None, lambda: False)
                if rival == "llama.cpp":
                    show(args, preset, name, {"Tessera": mine, rival: other})
                show_share(args, preset, name, mine, rival)


if __name__ == "__main__":
    main()
