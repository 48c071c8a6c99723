"""Files of equal size, ours and llama.cpp's presets with an importance matrix, on four kinds of text.

Usage: python tests/bench/against_presets.py MODEL-F16.gguf --llama-cpp DIR [--presets Q3_K_M,Q4_K_M]
       [--tier balanced] [--tokens 4096] [--chunks 64] [--threads 2] [--work DIR] [--text NAME=FILE]...

DIR holds llama-imatrix and llama-quantize of any build: their newest recipes are what is compared. Both sides are
calibrated with assets/text/calibration.txt. Ours is made by `tessera quantize` for the bytes of the preset's file;
a difference above 1 % ends the comparison. The texts are prose (the documentation), code (the program), chats
(assets/text/heldout.txt) and tool calls (the definitions and requests of `tessera certify`). None of them is in the
calibration text. `--text` adds files of your own.

Not compared: Unsloth's dynamic files, whose choice of types is not published as a table, and auto-round, which
needs torch.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from app.evals.tool_calls.suite import suite
from quantize.measure.verify import verify
from quantize.measurements import VerifyRequest
from quantize.types import CALIBRATION, HELD_OUT, FileReport
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
    """llama.cpp's file, made by its own tools."""
    imatrix = args.work / "imatrix.gguf"
    if not imatrix.exists():
        _run(
            args.llama_cpp / "llama-imatrix",
            *("-m", args.model, "-f", CALIBRATION, "-o", imatrix, "-c", 512, "-t", args.threads),
            *("--chunks", args.chunks),
        )
    out: Path = args.work / f"{preset}.gguf"
    if not out.exists():
        _run(args.llama_cpp / "llama-quantize", "--imatrix", imatrix, args.model, out, preset, args.threads)
    return out


def our_file(args: argparse.Namespace, preset: str, limit: int) -> Path:
    """Our file for these bytes, made as a user makes it."""
    out: Path = args.work / f"{preset}-ours-{args.tier}.gguf"
    if not out.exists():
        made = (args.model, out, "--budget", f"{limit}B", "--tier", args.tier, "--no-verify", "--yes")
        _run(sys.executable, "-m", "app", "quantize", *made)
    return out


def _run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed: {done.stderr[-1000:]}")


def show(args: argparse.Namespace, preset: str, text: str, files: dict[str, FileReport]) -> None:
    """Print and record the figures of both files on one text."""
    for maker, report in files.items():
        kld, top1 = report.kld_mean, report.top1_agreement_frac
        print(
            f"{preset:<8}{text:<12}{maker:<12}{report.file_bytes:>12,} bytes  mean {kld.value:.5f} "
            f"({kld.low:.5f} to {kld.high:.5f})  p99.9 {report.kld_p999:.3f}  same top token {top1.value:.1%}",
            flush=True,
        )
        for metric, value, unit, interval in (
            ("mean KL divergence", kld.value, "nats per token", (_short(kld.low), _short(kld.high))),
            ("99.9th percentile of KL divergence", report.kld_p999, "nats per token", None),
            ("same top token", 100 * top1.value, "%", (_short(100 * top1.low), _short(100 * top1.high))),
        ):
            record(
                "against_presets",
                metric,
                _short(value),
                unit,
                interval=interval,
                model=args.model.stem,
                preset=preset,
                text=text,
                file=maker,
                bytes=report.file_bytes,
                tokens=report.tokens,
            )
    if ratio := files["Tessera"].ratio:
        share = f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        print(f"{preset:<8}{text:<12}share of the preset's loss {share}", flush=True)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--presets", default="Q3_K_M,Q4_K_M")
    parser.add_argument("--tier", default="balanced")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--text", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--work", type=Path, default=Path("build/against_presets"))
    args = parser.parse_args()
    args.model, args.work = args.model.resolve(), args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    more = {name: Path(path) for name, _, path in (each.partition("=") for each in args.text)}
    judged = {**texts(args.work), **more}
    for preset in args.presets.split(","):
        theirs = preset_file(args, preset)
        ours = our_file(args, preset, theirs.stat().st_size)
        if abs(ours.stat().st_size / theirs.stat().st_size - 1) > _SAME_BYTES:
            raise SystemExit(f"{ours} and {theirs} differ by more than 1 % in size")
        for name, text in judged.items():
            task = VerifyRequest(
                reference=args.model,
                files=(ours, theirs),
                text=text,
                max_tokens=args.tokens,
                threads=args.threads,
            )
            mine, preset_report = verify(task, lambda _: None, lambda: False)
            show(args, preset, name, {"Tessera": mine, "llama.cpp": preset_report})


if __name__ == "__main__":
    main()
