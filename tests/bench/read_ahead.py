"""First token after a question that was or was not prefilled during typing; decoding next to side work.

    python -m tests.bench.read_ahead [--rounds 5]

A chat of about 1,500 tokens and a draft of about 200, SmolLM2. Both ways alternate; ratios of medians.
"""

import argparse
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

from app.client import ChatResponse, Client, chat_body
from tests.support.servers import RunningServer

MODEL = "smollm2-135m-instruct"
WORDS = [
    "boat",
    "rope",
    "winter",
    "harbour",
    "engine",
    "light",
    "island",
    "keeper",
    "storm",
    "letter",
    "bread",
    "morning",
]


def text(pick, words):
    return " ".join(pick.choice(WORDS) for _ in range(words))


def ask(client, messages, most, **more):
    whole, gaps, last = ChatResponse(), [], None
    for piece in client.answer(
        chat_body(MODEL, messages, {"max_tokens": most, "temperature": 0, "ignore_eos": True, **more})
    ):
        whole.take(piece)
        if piece.text:
            now = time.monotonic()
            if last is not None:
                gaps.append(now - last)
            last = now
    return whole, gaps


def percentile(values, share):
    return sorted(values)[int(share * (len(values) - 1))]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5)
    rounds = options.parse_args().rounds
    source = next((Path.home() / ".cache" / "tessera" / "models").glob("smollm2-135m-instruct*.gguf"))
    home = Path(tempfile.mkdtemp())
    (home / "models").mkdir()
    (home / "models" / f"{MODEL}.gguf").symlink_to(source)
    server = RunningServer(home)
    pick = random.Random(1)
    first = {"cold": [], "ahead": []}
    gaps = {"alone": [], "beside": []}
    try:
        with Client(server.url, server.token) as client:
            ask(client, [{"role": "user", "content": "Hi"}], 2)
            for number in range(2 * rounds):
                way = ("cold", "ahead")[number % 2]
                history = [
                    {"role": "user", "content": text(pick, 900)},
                    {"role": "assistant", "content": text(pick, 200)},
                ]
                draft = text(pick, 150)
                if way == "ahead":
                    ask(
                        client,
                        [*history, {"role": "user", "content": " ".join(draft.split()[:-8]) + " "}],
                        1,
                        priority="side",
                    )
                whole, _ = ask(client, [*history, {"role": "user", "content": draft}], 4)
                first[way].append(whole.first_s)
            for number in range(2 * rounds):
                way = ("alone", "beside")[number % 2]
                aside = None
                if way == "beside":
                    body = [{"role": "user", "content": text(pick, 1500)}]
                    aside = threading.Thread(target=lambda: ask(client, body, 60, priority="side"))  # noqa: B023
                    aside.start()
                    time.sleep(0.3)
                _, found = ask(client, [{"role": "user", "content": "Tell a story."}], 120)
                gaps[way] += found
                if aside is not None:
                    aside.join()
    finally:
        server.stop()
    cold, ahead = statistics.median(first["cold"]), statistics.median(first["ahead"])
    print(f"first token: cold {cold * 1000:.0f} ms, read ahead {ahead * 1000:.0f} ms, ratio {ahead / cold:.2f}")
    alone, beside = (percentile(gaps[way], 0.5) for way in ("alone", "beside"))
    speeds = f"alone {1 / alone:.1f} tok/s, beside side work {1 / beside:.1f} tok/s"
    print(f"decode p50: {speeds}, ratio {alone / beside:.3f}")
    alone, beside = (percentile(gaps[way], 0.99) for way in ("alone", "beside"))
    print(f"gaps p99: alone {alone * 1000:.1f} ms, beside {beside * 1000:.1f} ms, ratio {beside / alone:.2f}")


if __name__ == "__main__":
    main()
