"""Computes several sequences and long prompts as the server does, and compares them with each sequence alone.

The device check computes one sequence of 64 tokens. Some drivers were wrong only with several sequences in one
batch, with a prompt next to answers, with a prompt of several ubatches, or with a second prompt. Here the device's
own results for each sequence alone, in short pieces, are the reference: such pieces were compared with the CPU.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.device_check import Reference, compare_rows, log_softmax, reference_of
from engine.runner.llama.native.model import LoadedModel

SEQUENCES: Final = 4
PROMPT: Final = 40
STEPS: Final = 6
# Faults were seen in one of three or four decodes; a round has ten of them.
ROUNDS: Final = 6
# Ubatches of the long prompt, and the pieces in which it is computed for comparison.
UBATCHES: Final = 2.5
PIECE: Final = 64
MAX_OUTPUTS: Final = 16
# Other shapes of batches use other kernels, whose sums differ in order. The faults are far larger: one row of
# another sequence is nats apart. So the limit is twenty times the device check's, or ten times the model's noise.
WRONG_NATS: Final = 0.02
NOISES: Final = 10.0
# A deep prompt that is expected to take longer waits until the model is idle.
SECONDS: Final = 5.0


class Wrong(NamedTuple):
    """A scenario whose results differ, and by how many nats in the mean."""

    scenario: str
    nats: float


class Scenarios:
    """The scenarios of one loaded model; each empties the cache. `noise` is the reference of the device check."""

    def __init__(self, loaded: LoadedModel, noise: Reference, tokens: list[int]) -> None:
        self._loaded, self._noise = loaded, noise
        self._batch, self._logits = Batch(loaded), Logits(loaded)
        self._tokens = tokens or [0]

    def run(self, seconds: float = SECONDS) -> tuple[list[str], Wrong | None]:
        """The scenarios that were computed, and the first whose results differ.

        Raises: ValueError: a batch could not be decoded, or its output is not a number.
        """
        end, done = time.monotonic() + seconds, list[str]()
        for name, scenario in self._possible():
            if time.monotonic() > end:
                break
            nats = scenario(end)
            self._clear()
            done.append(name)
            if nats is not None:
                return done, Wrong(name, nats)
        return done, None

    def _possible(self) -> Iterator[tuple[str, Callable[[float], float | None]]]:
        settings = self._loaded.settings
        cells = max(settings.kv_cells, self._loaded.n_ctx)
        if min(self._loaded.n_ctx, self._loaded.n_batch) <= PROMPT + STEPS:
            return
        if settings.n_parallel > 1 and cells >= SEQUENCES * (PROMPT + STEPS):
            yield "several sequences in one batch", self._mixed
        yield "a second prompt after an answer", self._second
        if self._loaded.keeps_partial and settings.n_parallel > 1:
            yield "a shared and a truncated prefix", self._shared
        if min(self._loaded.n_batch, self._loaded.n_ctx - 1) > self._loaded.n_ubatch:
            yield "a prompt of several ubatches", self._long

    # ---- the scenarios: None if the results are right, else the difference in nats

    def _mixed(self, end: float) -> float | None:
        """Prompts in a batch with other sequences' answers, and answers of all sequences together."""
        count = min(SEQUENCES, self._loaded.settings.n_parallel)
        texts = [self._text(number, PROMPT + STEPS) for number in range(count)]
        alone = [self._alone(text) for text in texts]
        for _ in range(ROUNDS):
            for expected, computed in zip(alone, self._together(texts), strict=True):
                if (nats := self._difference(expected, computed)) is not None:
                    return nats
            if time.monotonic() > end:
                break
        return None

    def _together(self, texts: list[list[int]]) -> list[list[Any]]:
        """The rows of each text. All share one cache: the texts start one after another, the last two together."""
        rows: list[list[Any]] = [[] for _ in texts]
        at = [0] * len(texts)
        for step in range(len(texts) + STEPS):
            for seq, text in enumerate(texts):
                if step == min(seq, len(texts) - 2):
                    self._batch.add_prompt(text[:PROMPT], 0, seq, last=True)
                    at[seq] = PROMPT
                elif PROMPT <= at[seq] < len(text):
                    self._batch.add(text[at[seq]], at[seq], seq)
                    at[seq] += 1
            present = [seq for seq, _ in self._batch.runs()]
            for seq, row in zip(present, self._decoded() if present else (), strict=True):
                rows[seq].append(row)
        self._clear()
        return rows

    def _second(self, _end: float) -> float | None:
        """The same prompt again after single steps, which may have rewritten weights or left something behind."""
        text = self._text(0, PROMPT + STEPS)
        first = self._alone(text)
        return self._difference(first, self._alone(text))

    def _shared(self, _end: float) -> float | None:
        """A sequence that begins with another's cells, and one that was cut and continued."""
        text, half = self._text(1, PROMPT + STEPS), PROMPT // 2
        expected = self._alone(text)
        self._batch.add_prompt(text[:PROMPT], 0, 0, last=True)
        self._decoded()
        api, memory = self._loaded.api, self._loaded.memory
        api.llama_memory_seq_cp(memory, 0, 1, 0, half)
        if (nats := self._difference(expected, self._continued(text, half, 1))) is not None:
            return nats
        if not api.llama_memory_seq_rm(memory, 0, half, -1):
            return None
        return self._difference(expected, self._continued(text, half, 0))

    def _long(self, end: float) -> float | None:
        """A prompt of several ubatches in one call, as the server reads it."""
        length = min(int(UBATCHES * self._loaded.n_ubatch), self._loaded.n_batch, self._loaded.n_ctx - 1)
        text = self._text(2, length)
        marks = [max(1, length * (i + 1) // MAX_OUTPUTS) for i in range(MAX_OUTPUTS)]
        started = time.monotonic()
        expected, at = list[Any](), 0
        for mark in marks:
            while at < mark:
                upto = min(mark, at + PIECE)
                self._batch.add_prompt(text[at:upto], at, 0, last=upto == mark)
                rows = self._decoded()
                at = upto
            expected += rows
            if at < length // 4 and (time.monotonic() - started) * length / at > end - started + SECONDS:
                return None  # too slow for a first load
        self._clear()
        at = 0
        for mark in marks:
            if mark - 1 > at:
                self._batch.add_prompt(text[at : mark - 1], at, 0, last=False)
            self._batch.add(text[mark - 1], mark - 1, 0)
            at = mark
        return self._difference(expected, self._decoded())

    # ---- parts

    def _text(self, number: int, length: int) -> list[int]:
        """Different tokens for each sequence, each in a different order."""
        start = number * 17 % len(self._tokens)
        return [self._tokens[(start + i * (2 * number + 1)) % len(self._tokens)] for i in range(length)]

    def _alone(self, text: list[int]) -> list[Any]:
        self._clear()
        rows = self._continued(text, 0, 0)
        self._clear()
        return rows

    def _continued(self, text: list[int], start: int, seq: int) -> list[Any]:
        """The rows of a text whose first `start` tokens are in the sequence."""
        self._batch.add_prompt(text[start:PROMPT], start, seq, last=True)
        rows = self._decoded()
        for at in range(PROMPT, len(text)):
            self._batch.add(text[at], at, seq)
            rows += self._decoded()
        return rows

    def _decoded(self) -> list[Any]:
        """Log probabilities of the batch's outputs. Raises: ValueError."""
        size, count = self._batch.size, self._batch.outputs
        code = self._batch.decode()
        self._batch.clear()
        if code != 0:
            raise ValueError(f"a batch of {size} tokens could not be decoded (llama_decode returned {code})")
        return [log_softmax(row) for row in self._logits.rows(count)[:count]] if count else []

    def _difference(self, expected: list[Any], computed: list[Any]) -> float | None:
        reference = reference_of(np.stack(expected), self._noise)
        check = compare_rows(reference, np.stack(computed))
        return None if check.kld_mean <= max(WRONG_NATS, NOISES * self._noise.noise_kld_mean) else check.kld_mean

    def _clear(self) -> None:
        self._loaded.api.llama_memory_clear(self._loaded.memory, True)
