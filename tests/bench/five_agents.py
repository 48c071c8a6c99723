"""Runs five concurrent subagents, each with 12,000 tokens at the end, on a model with 48k of context in total.

    python tests/bench/five_agents.py MODEL.gguf [--tools FOLDER]

All start with the same instructions (4,096 tokens). Each sends its own prompt, and after each answer a tool result
with the whole conversation. Recorded per server: finished subagents, total time, computed tokens, and the longest
wait for a first token. FOLDER contains llama-server of the same llama.cpp, which gets the same load.
"""

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx2

from tests.bench.recording import record
from tests.bench.rival import LlamaServer
from tests.support.servers import RunningServer

NAME, AGENTS, TURNS, CELLS = "shared", 5, 3, 49_152
COMMON, OWN, RESULT, ANSWER = 4_096, 4_096, 1_920, 64


def text(length: int, seed: int) -> list[int]:
    """Return token ids that differ between seeds."""
    return [3 + (seed * 31 + i * i * 7 + i) % 200 for i in range(length)]


class Agent(threading.Thread):
    """One conversation; `turns` has the wait and the time of each turn, and `failed` the first error."""

    def __init__(self, number: int, client: httpx2.Client, begun: float) -> None:
        super().__init__()
        self.number, self.client, self.begun = number, client, begun
        self.turns: list[dict[str, float]] = []
        self.failed = ""

    def run(self) -> None:
        """Send all turns."""
        talk = text(COMMON, 0) + text(OWN, self.number)
        for turn in range(TURNS):
            asked = time.monotonic()
            body: dict[str, Any] = {"model": NAME, "prompt": talk, "max_tokens": ANSWER, "ignore_eos": True}
            body |= {"stream": True, "stream_options": {"include_usage": True}, "temperature": 1, "top_k": 1}
            first, usage = 0.0, None
            with self.client.stream("POST", "/v1/completions", json=body) as stream:
                for line in stream.iter_lines():
                    chunk = json.loads(line[6:]) if line.startswith("data: {") else {}
                    if "error" in chunk or stream.status_code >= 400:
                        self.failed = line[:300]
                        return
                    first = first or (time.monotonic() if chunk.get("choices") else 0.0)
                    usage = chunk.get("usage") or usage
            if usage is None or usage["completion_tokens"] < ANSWER:
                self.failed = f"turn {turn + 1} ended early: {usage}"
                return
            computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
            now = time.monotonic()
            self.turns.append(
                {
                    "began": asked - self.begun,
                    "wait": first - asked,
                    "ended": now - self.begun,
                    "computed": computed,
                }
            )
            talk += text(ANSWER, 90 + self.number) + text(RESULT, 50 + self.number * TURNS + turn)


def agents(url: str, token: str) -> list[Agent]:
    """Run all of them."""
    headers = {"connection": "close"}  # llama-server drops idle connections while a client reuses them
    headers |= {"authorization": f"Bearer {token}"} if token else {}
    with httpx2.Client(base_url=url, headers=headers, timeout=3600) as client:
        if token:
            client.post(f"/tessera/v1/models/{NAME}/load", json={"n_ctx": CELLS}).raise_for_status()
        running = [Agent(number + 1, client, time.monotonic()) for number in range(AGENTS)]
        for one in running:
            one.start()
        for one in running:
            one.join()
    return running


def report(server: str, model: str, found: list[Agent], note: str) -> None:
    """Print and record their times."""
    for one in found:
        waits = " ".join(
            f"{t['began']:.1f}+{t['wait']:.1f}s->{t['ended']:.1f}s ({t['computed']})" for t in one.turns
        )
        print(f"{server} agent {one.number}: {waits} {one.failed}", flush=True)
    turns = [turn for one in found for turn in one.turns]
    at = {"model": model, "server": server, "agents": AGENTS, "cells": CELLS}
    record("five_agents", "agents that finish", sum(not one.failed for one in found), "of 5", **at, note=note)
    if turns:
        took = max(turn["ended"] for turn in turns)
        record("five_agents", "time until all end", round(took, 1), "s", **at, note=note)
        record("five_agents", "tokens computed", sum(int(t["computed"]) for t in turns), "tokens", **at, note=note)
        longest = max(turn["wait"] for turn in turns)
        record("five_agents", "longest wait for a first token", round(longest, 1), "s", **at, note=note)


def main() -> None:
    """One server after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tools", type=Path)
    parser.add_argument("--note", default="", help="about the machine, such as its load")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="five-agents-"))
    (home / "models").mkdir()
    (home / "models" / f"{NAME}.gguf").symlink_to(given.model.resolve())
    server = RunningServer(home)
    try:
        report("Tessera", given.model.stem, agents(server.url, server.token), given.note)
    finally:
        server.stop()
    if given.tools is not None:
        rival = LlamaServer(given.tools, str(given.model), threads=1, context=CELLS, parallel=AGENTS)
        try:
            report("llama-server", given.model.stem, agents(rival.url, ""), given.note)
        finally:
            rival.stop()


if __name__ == "__main__":
    main()
