"""Compares a model's expected speed, before and after its first answers, with the measured one.

    python -m tests.bench.expected_speed [--only qwen3-0.6b:Q8_0 ...] [--record]

Each shape is written with random weights and put into the library of a separate server. The server states what it
expects; then it answers at the depth of a usual chat. Goals: within 1.3 times before the first answer, within 1.1
times afterwards. About 15 minutes on two quiet cores, and 2 GB of disk at a time.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import httpx2

from engine.job_kinds.bench import dummy_model
from engine.placement.speed import USUAL_DEPTH
from tests.bench.recording import record
from tests.support.servers import RunningServer

CASES = (
    "smollm2-135m:Q4_1", "smollm2-360m:Q8_0", "qwen3-0.6b:Q4_K_M", "qwen3-0.6b:F16", "llama3.2-1b:Q4_K_M",
    "qwen3-1.7b:Q4_K_M",
)  # fmt: skip
ANSWERS, TOKENS = 5, 48
# The forecast is for a token after USUAL_DEPTH others, so half of an answer's tokens come before that.
PROMPT = list(range(100, 100 + USUAL_DEPTH - TOKENS // 2))
GOAL_BEFORE, GOAL_AFTER = 1.3, 1.1


class Measured:
    """A server with one model, its expectations and its answers."""

    def __init__(self, folder: Path, case: str) -> None:
        self.case = case
        shape, _, qtype = case.partition(":")
        (folder / "models").mkdir()
        path = folder / "models" / f"{shape}-{qtype.lower()}.gguf"
        dummy_model.write_in_child(path, shape=shape, mix=qtype, on_progress=lambda _done, _total: None)
        self.server = RunningServer(folder)
        headers = {"authorization": f"Bearer {self.server.token}"}
        self.http = httpx2.Client(base_url=self.server.url, headers=headers, timeout=900, trust_env=False)
        ids = [row["id"] for row in self.http.get("/v1/models").json()["data"]]
        self.model = next(name for name in ids if name.startswith(shape))

    def expected(self) -> tuple[float, str]:
        """Tokens per second, and the basis of the figure."""
        placement = self.http.get(f"/tessera/v1/models/{self.model}/placement").json()["placement"]
        return placement["decode_tok_s"], placement["basis"]

    def answer(self) -> float:
        """Tokens per second of one answer."""
        body = {
            "model": self.model, "prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        found = self.http.post("/v1/completions", json=body)
        assert found.status_code == 200, found.text
        events = [json.loads(line[6:]) for line in found.text.splitlines() if line.startswith("data: {")]
        return next(event["timings"]["tok_s"] for event in events if event.get("timings"))

    def close(self) -> None:
        """End client and server."""
        self.http.close()
        self.server.stop()


def factor(expected: float, measured: float) -> float:
    """The factor by which it is too high or too low."""
    return max(expected / measured, measured / expected)


def main() -> None:
    """Measure every case, print a line for each, and record two figures for each if wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=CASES)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    for case in options.only:
        with tempfile.TemporaryDirectory() as folder:
            measured = Measured(Path(folder), case)
            try:
                before, basis = measured.expected()
                speeds = [measured.answer() for _ in range(ANSWERS)]
                after, basis_after = measured.expected()
                again = [measured.answer() for _ in range(ANSWERS)]
            finally:
                measured.close()
        figures = (
            ("before the first answer", before, basis, speeds, GOAL_BEFORE),
            ("after five answers", after, basis_after, again, GOAL_AFTER),
        )
        for when, expected, source, answers, goal in figures:
            real = statistics.median(answers)
            off = factor(expected, real)
            verdict = "" if off <= goal else "  MISSED"
            print(
                f"{case:20} {when:24} expected {expected:7.1f} ({source}), measured {real:7.1f} tok/s: "
                f"{off:.2f} times (goal {goal}){verdict}",
                flush=True,
            )
            if options.record:
                off_each = [factor(expected, one) for one in answers]
                record(
                    "expected_speed", f"expected and measured speed, {when}", round(off, 3), "times", n=ANSWERS,
                    interval=(min(off_each), max(off_each)), note=f"goal {goal}", case=case,
                    expected=round(expected, 1), measured=round(real, 1),
                )  # fmt: skip


if __name__ == "__main__":
    main()
