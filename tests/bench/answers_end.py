"""Counts answers to everyday questions that end by themselves, for Tessera and llama-server as shipped.

    python tests/bench/answers_end.py MODEL.gguf --tools FOLDER [--prompts 30] [--seeds 3] [--out FILE]

FOLDER holds llama-server of the same commit (tests/optin/record_llama_server.py builds it). Only a seed and a limit
of 1,024 tokens are asked for: sampling is each side's default. Our loop guard is on, as in window and terminal;
answers that it cut are printed, so that a reader can judge them, and are run again without it.
"""

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.rival import LlamaServer
from tests.support.servers import RunningServer

LIMIT = 1024
AT_ONCE = 4


def ask(url: str, question: str, seed: int, **options) -> dict:
    """One answer, with the reason for its end."""
    body = {
        "model": "bench",
        "messages": [{"role": "user", "content": question}],
        "seed": seed,
        "max_tokens": LIMIT,
    }
    told = httpx2.post(f"{url}/v1/chat/completions", json={**body, **options}, timeout=300, trust_env=False).json()
    choice = told["choices"][0]
    return {
        "question": question,
        "seed": seed,
        "ended": choice["finish_reason"] == "stop",
        "tokens": told["usage"]["completion_tokens"],
        "runaway": (told.get("tessera") or {}).get("runaway"),
        "text": choice["message"]["content"],
    }


def main() -> None:
    """Run both sides and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    questions = (ROOT / "tests/data/real/prompts.txt").read_text().splitlines()[: given.prompts]
    found: dict[str, list[dict]] = {"ours": [], "theirs": [], "ours, unguarded": []}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        home = Path(folder)
        (home / "models").mkdir()
        (home / "models" / "bench.gguf").symlink_to(given.model.resolve())
        ours = RunningServer(home)
        theirs = LlamaServer(given.tools, str(given.model), threads=2, context=8192, parallel=AT_ONCE)
        try:
            for seed in range(1, given.seeds + 1):
                for side, url, options in (("ours", ours.url, {"loop_guard": True}), ("theirs", theirs.url, {})):
                    answers = pool.map(lambda q, u=url, s=seed, o=options: ask(u, q, s, **o), questions)
                    found[side] += list(answers)
                    ended = sum(a["ended"] for a in found[side])
                    print(f"seed {seed}, {side}: {ended} of {len(found[side])} ended", flush=True)
            for cut in [a for a in found["ours"] if a["runaway"]]:
                print(f"\ncut: {cut['question']} (seed {cut['seed']}): {cut['runaway']}\n{cut['text'][-600:]}")
                found["ours, unguarded"].append(ask(ours.url, cut["question"], cut["seed"]))
        finally:
            ours.stop()
            theirs.stop()
    for side, answers in found.items():
        if answers:
            ended, tokens = sum(a["ended"] for a in answers), sorted(a["tokens"] for a in answers)
            share = ended / len(answers)
            print(
                f"{side}: {ended} of {len(answers)} ended ({share:.1%}), median {tokens[len(tokens) // 2]} tokens"
            )
    if given.out:
        given.out.write_text(json.dumps(found, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
