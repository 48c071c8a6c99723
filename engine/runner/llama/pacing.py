"""What steps cost here and now, and what follows: how much prompt fits beside answers, and how many threads pay."""

from typing import Final

from engine.runner.llama.model import LoadedModel
from engine.runner.llama.payoff import StepCost
from engine.runner.llama.threads import BatchThreads

# Longest step wanted while another is generating; prompts are cut to what fits into it. It grows with the number of
# requests that wait for their first token for each that generates: wider steps read them faster.
TARGET_STEP_S: Final = 0.1
MOST_STRETCH: Final = 5
# A processor is as efficient with this many rows as with hundreds. Measured: docs/log.md, engine.
MIN_CHUNK: Final = 16
# Its kernels take rows by four; what is left over is computed one by one. Source: ggml-cpu/repack.cpp.
ROWS_AT_ONCE: Final = 4
# An answer is told this often at most. Each time costs the runner, the server and the client half a millisecond of
# the cores that compute; an eye takes text in at the rate of a display. Measured: docs/log.md, engine.
TELL_EVERY_S: Final = 0.02


class Pace:
    """Learns from every step. Sets the context's threads."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._threads_set = int(loaded.api.llama_n_threads_batch(loaded.context))
        self._threads = BatchThreads(self._threads_set)
        self._prefill_tok_s = 0.0
        self.cost = StepCost()

    def prefill_budget(self, generating: int, waiting: int = 1) -> int:
        """Prompt tokens for the next step; `generating` rows are answers, which must not wait for long.

        `waiting` requests read their prompts.
        """
        if not generating:
            return self._loaded.n_batch
        stretch = min(max(1.0, waiting / generating), MOST_STRETCH)
        wanted = int(self._prefill_tok_s * TARGET_STEP_S * stretch)
        chunk = max(MIN_CHUNK, min(wanted, self._loaded.n_ubatch))
        return chunk + -(chunk + generating) % ROWS_AT_ONCE

    def set_threads(self, rows: int) -> None:
        """Use as many threads as pay for a step of `rows` at this moment, while other programs come and go."""
        wanted = self._threads.threads(rows)
        if wanted != self._threads_set:
            self._threads_set = wanted
            self._loaded.api.llama_set_n_threads(self._loaded.context, wanted, wanted)

    def note(self, rows: int, outputs: int, seconds: float, cpu_s: float, now: float) -> None:
        """A step of `rows`, of which `outputs` wanted logits, took so long, and so much processor time.

        `now` is a monotonic clock.
        """
        self._threads.note(rows, seconds, cpu_s, now)
        if rows == outputs:
            self.cost.note(rows, seconds)
        elif rows - outputs >= MIN_CHUNK and seconds > 0:
            speed = rows / seconds
            self._prefill_tok_s = speed if not self._prefill_tok_s else 0.7 * self._prefill_tok_s + 0.3 * speed
