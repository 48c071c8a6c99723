"""`tessera bench` against llama-bench of the same llama.cpp commit: same settings, in alternating order in one run.

    python -m tests.bench.against_llama_bench --tools FOLDER [--shapes qwen3-0.6b:Q4_K_M ...] [--rounds 3]

Both sides start anew each round and measure once; printed are medians over the rounds and their ratio.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from click.testing import CliRunner

from app.cli.bench import command
from engine.job_kinds.bench import dummy_model

SHAPES = ("smollm2-135m:Q8_0", "stories-110m:Q8_0", "smollm2-360m:Q4_K_M")


Size = tuple[int, int, int, int]
Settings = tuple[str, ...]


def ours(path: Path, size: Size) -> tuple[tuple[float, float], Settings]:
    """Prefill and decode of `tessera bench` (decode behind one token), and its settings for llama-bench."""
    threads, prompt, tokens, repeats = map(str, size)
    options = ["--lengths", f"1,{prompt}", "--parallel", "1", "--tokens", tokens, "--repeats", repeats]
    done = CliRunner().invoke(command, [str(path), *options, "--threads", threads, "--json"])
    if done.exit_code:
        raise SystemExit(f"tessera bench failed: {done.output} {done.exception}")
    report = json.loads(done.stdout)
    by_length = {p["length"]: p for p in report["points"]}
    used = ("-ub", str(report["n_ubatch"]), "-b", str(report["n_batch"]), "-fa", report["flash_attn"])
    kinds = ("-ctk", report["type_k"], "-ctv", report["type_v"])
    pair = by_length[size[1]]["prefill_tok_s"]["median"], by_length[1]["decode_tok_s"]["median"]
    return pair, (*used, *kinds)


def theirs(tools: Path, path: Path, size: Size, settings: Settings) -> tuple[float, float]:
    """Prefill and decode of llama-bench: the median of its samples."""
    threads, prompt, tokens, repeats = map(str, size)
    options = ["-t", threads, "-p", prompt, "-n", tokens, "-r", repeats, *settings]
    command_line = [str(tools / "llama-bench"), "-m", str(path), *options, "-o", "json"]
    rows = json.loads(subprocess.run(command_line, capture_output=True, text=True, check=True).stdout)
    found = {("pp" if row["n_prompt"] else "tg"): statistics.median(row["samples_ts"]) for row in rows}
    return found["pp"], found["tg"]


def main() -> None:
    """Compare on every shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="Keep the stand-ins here, so that another run writes none.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        for shape in options.shapes:
            name, _, mix = shape.partition(":")
            path = folder / f"{name}-{mix}.gguf"
            if not path.exists():
                dummy_model.write_in_child(path, shape=name, mix=mix, on_progress=lambda _done, _total: None)
            size = options.threads, options.prompt, options.tokens, options.repeats
            rows: list[tuple[tuple[float, float], tuple[float, float]]] = []
            _, settings = ours(path, size)  # also warms the file's pages
            for turn in range(options.rounds):
                if turn % 2:
                    rows.append((ours(path, size)[0], theirs(options.tools, path, size, settings)))
                else:
                    other = theirs(options.tools, path, size, settings)
                    rows.append((ours(path, size)[0], other))
            for i, test in enumerate((f"pp{options.prompt}", f"tg{options.tokens}")):
                mine = statistics.median(o[i] for o, _ in rows)
                other = statistics.median(t[i] for _, t in rows)
                each = ", ".join(f"{o[i] / t[i]:.3f}" for o, t in rows)
                median = statistics.median(o[i] / t[i] for o, t in rows)
                ratio = f"{median:.3f}, of each round {each}"
                print(f"{shape} {test}: ours {mine:.2f}, llama-bench {other:.2f} tok/s, ratio {ratio}", flush=True)


if __name__ == "__main__":
    main()
