"""Measures the cost of steps, and derives the prefill budget next to responses and the number of threads."""

import time
from collections.abc import Iterable
from typing import Final

from devices.backends.cpu_kernels import ATTENTION
from engine.core.types import Event
from engine.runner.generation.draft_length import ROWS_AT_ONCE, StepCost
from engine.runner.generation.step_accounting import ANSWER_ROWS
from engine.runner.llama.batch.threads import BatchThreads
from engine.runner.llama.native.model import LoadedModel
from engine.runner.llama.sequence import LlamaSequence
from engine.runner.protocol import LoadSettings

# Time that a prompt may add to a step while others generate, or the time of their rows if that is longer. It grows
# with the ratio of requests in prefill to generating ones: wide steps prefill faster.
PROMPT_STEP_S: Final = 0.1
MAX_STRETCH: Final = 5
# A CPU is as efficient with this many rows as with hundreds. Measured: log-archive.md, engine.
MIN_CHUNK: Final = 16
# After a long text, attention takes most of a step. Tessera's computes this many queries of a head of keys at once,
# so fewer rows take just as long. Measured: log-archive.md, "gaps while a context grows".
STRIP, LONG_TEXT = 48, 4096
# On CPUs llama.cpp's flash attention processes a step's rows in tiles of this many, and fewer rows one by one.
# Source: GGML_FA_TILE_Q, ggml-cpu/common.h.
TILE_ROWS: Final = 64
# From this depth on, single rows are so slow that a step with a prompt should fill tiles. Measured: log-archive.md,
# engine.
DEEP: Final = 512
# From this many rows on, single rows take longer there than a whole tile. Measured: log-archive.md, engine.
NEARLY_A_TILE: Final = 40
# Minimum time between two deltas of a response. Each costs the runner, the server and the client 0.5 ms on the
# computing cores, and faster updates are not visible on a display. Measured: log-archive.md, engine.
FLUSH_INTERVAL_S: Final = 0.02


# After a pause this long, nothing is known about other programs; the load average shows whether any are running.
IDLE_S: Final = 1.0


class StepBudget:
    """Learns from every step. Sets the context's threads, unless they are `fixed`."""

    def __init__(self, loaded: LoadedModel, *, fixed: bool = False) -> None:
        self._loaded = loaded
        self._fixed = fixed
        self._threads_set = int(loaded.api.llama_n_threads_batch(loaded.context))
        self._threads = BatchThreads(self._threads_set)
        self._divides = loaded.settings.flash_attn != "off" and ATTENTION not in loaded.settings.tiles
        self._most = 0
        self._noted_at = 0.0
        self._prompt_row_s = 0.0
        self.cost = StepCost()

    def prefill_budget(self, generating: int, waiting: int = 1, depth: int = 0) -> int:
        """Return the prompt tokens for the next step; `generating` rows are responses, which must not wait long.

        `waiting` requests are in prefill; the deepest of them has `depth` computed tokens.
        """
        settings = self._loaded.settings
        most = settings.deep_rows if settings.deep_rows and depth >= settings.deep_from else self._loaded.n_batch
        if not generating:
            return most
        stretch = min(max(1.0, waiting / generating), MAX_STRETCH)
        added_s = max(PROMPT_STEP_S, self._answers_s(generating)) * stretch
        affordable = int(added_s / self._prompt_row_s) if self._prompt_row_s else 0
        whole = TILE_ROWS if depth >= DEEP and in_tiles(self._loaded.settings) else ROWS_AT_ONCE
        least = MIN_CHUNK
        if depth >= LONG_TEXT and self._is_slow(added_s):
            least = min(MIN_CHUNK, max(1, self._strip_rows() - generating))
        rows = max(least, affordable) + generating
        return max(least, min(rows + -rows % whole, self._loaded.n_ubatch, most) - generating)

    def _is_slow(self, added_s: float) -> bool:
        """Whether MIN_CHUNK rows take twice the time that a prompt may add, because of attention alone."""
        own = not self._loaded.settings.n_gpu_layers and ATTENTION in self._loaded.settings.tiles
        return own and 2 * added_s < MIN_CHUNK * self._prompt_row_s and not self.is_starved

    def _strip_rows(self) -> int:
        """Return the rows that fill one strip, as whole groups of rows."""
        api, model = self._loaded.api, self._loaded.model
        queries = api.llama_model_n_head(model) // max(1, api.llama_model_n_head_kv(model))
        rows = STRIP // max(1, queries)
        return int(max(2 * ROWS_AT_ONCE, rows + -rows % ROWS_AT_ONCE))

    def step_rows(self, usual: int) -> int:
        """Return the prompt tokens that take as long as a step without prompt; `usual` if not measured yet."""
        step_s = self.cost.seconds(1)
        return usual if step_s is None or not self._prompt_row_s else round(step_s / self._prompt_row_s)

    def bound_threads(self, most: int) -> None:
        """Limit the threads of all further steps; 0: as many as are worthwhile."""
        self._most = most

    def set_threads(self, rows: int, *, steady: bool = False) -> None:
        """Set the best number of threads for a step of `rows`, given the current load of other programs.

        A `steady` step uses the load's number if results depend on it: llama.cpp's flash attention of one row
        divides a long text among the threads.
        """
        now = time.monotonic()
        if now - self._noted_at > IDLE_S and _is_busy():
            self._threads.presume_busy(now)
            self._noted_at = now
        num_threads = self._threads_set if self._fixed else self._threads.threads(rows)
        if steady and not self._fixed and self._divides:
            num_threads = self._threads.most
        if self._most and not self._fixed:
            num_threads = min(num_threads, self._most)
        if num_threads != self._threads_set:
            self._threads_set = num_threads
            self._loaded.api.llama_set_n_threads(self._loaded.context, num_threads, num_threads)

    def rebind(self) -> None:
        """Set the number of threads in a new context."""
        self._loaded.api.llama_set_n_threads(self._loaded.context, self._threads_set, self._threads_set)

    @property
    def is_starved(self) -> bool:
        """True if other programs compete with the steps for the CPU."""
        return not self._loaded.settings.devices and self._threads.is_starved

    def note(self, rows: int, outputs: int, seconds: float, cpu_s: float, now: float) -> None:
        """Record a step of `rows`, of which `outputs` needed logits, with its duration and CPU time.

        `now` is a monotonic clock.
        """
        self._noted_at = now
        self._threads.note(rows, seconds, cpu_s, self._threads_set, now)
        prompt = rows - outputs
        # The time of a few rows says little about many, unless many rows were so slow that steps have few.
        least = ROWS_AT_ONCE if MIN_CHUNK * self._prompt_row_s > 2 * PROMPT_STEP_S else MIN_CHUNK
        if not prompt:
            self.cost.note(rows, seconds)
        elif prompt >= least and seconds > 0:
            share_s = prompt * seconds / (prompt + ANSWER_ROWS * outputs)
            answers_s = self.cost.seconds(outputs)
            row_s = (share_s if answers_s is None else max(seconds - answers_s, share_s / 2)) / prompt
            self._prompt_row_s = 0.7 * self._prompt_row_s + 0.3 * row_s if self._prompt_row_s else row_s

    def _answers_s(self, rows: int) -> float:
        """Return the time of a step that only has response rows."""
        return self.cost.seconds(rows) or rows * ANSWER_ROWS * self._prompt_row_s


def in_tiles(settings: LoadSettings) -> bool:
    """Whether llama.cpp's CPU flash attention reads this cache in tiles; Tessera's takes any number of rows."""
    fused = settings.flash_attn != "off" and settings.n_gpu_layers == 0 and ATTENTION not in settings.tiles
    return fused and settings.type_k == settings.type_v and settings.type_k in ("f16", "f32")


def usable_prefix(settings: LoadSettings, cached: int, length: int) -> int:
    """Return how much of a prompt's cached prefix to use: a rest of nearly a tile is slower than a whole tile.

    `cached` of `length` tokens are computed.
    """
    nearly = NEARLY_A_TILE <= length - cached < TILE_ROWS
    return length - TILE_ROWS if nearly and cached >= DEEP and in_tiles(settings) else cached


def prefill_order(prefilling: list[LlamaSequence]) -> list[LlamaSequence]:
    """Return requests in prefill order: the shortest rest first, or the oldest if it was skipped last time.

    So a short prompt does not wait for a long one, and a long one does not wait forever. First tokens come one
    after the other instead of all late. `prefilling` is in order of arrival.
    """
    if not prefilling:
        return prefilling
    oldest = prefilling[0]
    if oldest.skipped:
        oldest.skipped = False
        return prefilling
    order = sorted(prefilling, key=lambda s: (s.request.priority != "interactive", s.n_missing))
    oldest.skipped = order[0] is not oldest
    return order


def flush_text(sequences: Iterable[LlamaSequence], running: list[LlamaSequence]) -> list[tuple[int, Event]]:
    """Return the deltas to send now: immediately if the next step is long, else at most at the display's rate."""
    now = time.monotonic()
    all_decode = all(s.decoding for s in running)
    deltas: list[tuple[int, Event]] = []
    for sequence in sequences:
        if all_decode and sequence.cache is not None and now - sequence.flushed_at < FLUSH_INTERVAL_S:
            continue
        shown = sequence.pending_text or sequence.pending_logprobs
        if shown and (delta := sequence.take_pending()) is not None:
            sequence.flushed_at = now
            deltas.append((sequence.id, delta))
    return deltas


def _is_busy() -> bool:
    from devices.host import is_busy  # the runner's first token needs none of it

    return is_busy()
