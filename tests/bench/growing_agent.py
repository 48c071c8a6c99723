"""Runs an agent whose context doubles repeatedly, compared with a context that was large from the start.

    python tests/bench/growing_agent.py MODEL.gguf [--start 8192] [--end 65536] [--ordinary]

A real server runs a model that was loaded with `--start` tokens. Each turn sends the whole conversation and a new
tool result of a sixteenth of the current context, while a second client streams one long answer. Compared are all
answers, the computed tokens, and the longest gap in the other stream. Answers are deterministic, or greedy with
`--ordinary`. Only deterministic ones are equal with certainty, but their steps at depth are longer.
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
from tests.support.servers import RunningServer

NAME = "grows"
ANSWER = 16


class Beside:
    """One long stream; `gaps` are the seconds between two of its pieces."""

    def __init__(self, server: RunningServer) -> None:
        self.gaps: list[float] = []
        self.ended = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(server,))
        self._thread.start()

    def _run(self, server: RunningServer) -> None:
        body = {"model": NAME, "prompt": [9, 8, 7], "max_tokens": 100_000, "stream": True, "ignore_eos": True}
        last = time.monotonic()
        with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=3600) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {") and '"error"' in line:
                    self.ended = line
                now = time.monotonic()
                self.gaps.append(now - last)
                last = now
                if self._stop.is_set():
                    return
        self.ended = self.ended or "it ended by itself"

    def stop(self) -> None:
        """Leave it."""
        self._stop.set()
        self._thread.join()


def agent(model: Path, first: int, end: int, *, beside: bool, exact: bool = True) -> dict[str, Any]:
    """One run with a context of `first` tokens at its start."""
    home = Path(tempfile.mkdtemp(prefix="growing-"))
    (home / "models").mkdir()
    (home / "models" / f"{NAME}.gguf").symlink_to(model.resolve())
    server = RunningServer(home)
    try:
        with httpx2.Client(
            base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=3600
        ) as client:
            loaded = client.post(f"/tessera/v1/models/{NAME}/load", json={"n_ctx": first}).json()
            other = Beside(server) if beside else None
            talk, answers, computed, sizes = [5], [], 0, [loaded["n_ctx"]]
            while len(talk) < end - end // 8 - 2 * ANSWER:
                talk += [3 + (len(talk) * 31 + i * i * 7 + i) % 200 for i in range(end // 16)]
                body = {"model": NAME, "prompt": talk, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 1}
                body |= {"top_k": 1, "deterministic": exact}
                answer = client.post("/v1/completions", json=body).raise_for_status().json()
                usage = answer["usage"]
                computed += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
                text = answer["choices"][0]["text"]
                answers.append(text)
                talk += client.post("/tokenize", json={"model": NAME, "content": text}).json()["tokens"][:ANSWER]
                now = client.get("/tessera/v1/loaded").json()["models"][0]
                if now["n_ctx"] != sizes[-1]:
                    sizes.append(now["n_ctx"])
            if other is not None:
                other.stop()
            gaps = sorted(other.gaps) if other is not None else [0.0]
            moved = [line.split("state_bytes=")[1] for line in server.log.splitlines() if "state_bytes=" in line]
            return {
                "tokens": len(talk), "computed": computed, "sizes": sizes, "answers": answers, "moved": moved,
                "gap_p99_ms": round(1000 * gaps[int(0.99 * len(gaps))]), "gap_max_ms": round(1000 * gaps[-1]),
                "beside": other.ended if other is not None else "", "same_process": now["pid"] == loaded["pid"],
            }  # fmt: skip
    finally:
        server.stop()


def main() -> None:
    """Both runs, and what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--start", type=int, default=8192)
    parser.add_argument("--end", type=int, default=65536)
    parser.add_argument("--ordinary", action="store_true", help="greedy answers in the shared context")
    parser.add_argument("--note", default="", help="about the machine, such as its load")
    given = parser.parse_args()
    grown = agent(given.model, given.start, given.end, beside=True, exact=not given.ordinary)
    answers = grown.pop("answers")
    print(json.dumps({"grown": grown}), flush=True)
    at = {"model": given.model.stem, "sizes": " ".join(map(str, grown["sizes"])), "tokens": grown["tokens"]}
    at["answers"] = "greedy" if given.ordinary else "deterministic"
    paused = sum(int(moved.split("ms=")[1]) for moved in grown["moved"])
    record("growing_agent", "pauses to grow, together", paused, "ms", **at, note=given.note)
    record("growing_agent", "p99 gap of another stream", grown["gap_p99_ms"], "ms", **at, note=given.note)
    record("growing_agent", "tokens computed", grown["computed"], "tokens", **at, context="grows")
    whole = agent(given.model, given.end, given.end, beside=False, exact=not given.ordinary)
    same = answers == whole.pop("answers")
    print(json.dumps({"whole": whole, "same answers": same}), flush=True)
    record("growing_agent", "answers equal to those of a large context", int(same), "1 = all", **at)
    record("growing_agent", "tokens computed", whole["computed"], "tokens", **at, context="large from the start")


if __name__ == "__main__":
    main()
