"""Computes several sequences and long prompts as the server does, and compares them with each sequence alone.

The device check computes one sequence of 64 tokens. Drivers were wrong only with several sequences in one batch,
with a prompt next to answers, with a prompt of several ubatches, with a second prompt, or with rows of drafts.
The reference for each short text is the CPU's result for it alone. A long prompt would take the CPU too long at a
first load: it is compared with the device's own results in short pieces, and with the CPU's while the computer is
idle (deep_check_child).
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
# Tokens that a full context discards from the middle of a text, and drafts that are not what follows.
DISCARDED: Final = 10
WRONG_DRAFTS: Final = 3
# Other shapes of batches use other kernels, whose sums differ in order. The faults are far larger: one row of
# another sequence is nats apart. So the limit is twenty times the device check's, or ten times the model's noise.
WRONG_NATS: Final = 0.02
NOISES: Final = 10.0
# The time for all scenarios at a first load. What does not fit is computed while the model is idle.
SECONDS: Final = 5.0


class Wrong(NamedTuple):
    """A scenario whose results differ, and by how many nats in the mean."""

    scenario: str
    nats: float


class Outcome(NamedTuple):
    """The scenarios that were compared, those that the time was too short for, and the first that differs."""

    done: list[str]
    omitted: list[str]
    wrong: Wrong | None


class OutOfTime(Exception):
    """The time was too short for a whole scenario."""


def texts(tokens: list[int]) -> list[list[int]]:
    """A text for each sequence, made of these tokens, and the second one without a part of its middle."""
    number = len(tokens)
    rows = [
        [tokens[(seq * 17 + i * (2 * seq + 1)) % number] for i in range(PROMPT + STEPS + DISCARDED)]
        for seq in range(SEQUENCES)
    ]
    discarded = rows[1][: PROMPT // 2] + rows[1][PROMPT // 2 + DISCARDED :]
    return [*(row[: PROMPT + STEPS] for row in rows), discarded]


def alone(loaded: LoadedModel, tokens: list[int], noise: Reference) -> tuple[Reference, ...]:
    """A model's results for each of the texts, each in a separate batch; empty if the context is too small for one.

    Raises: ValueError: a batch could not be decoded, or its output is not a number.
    """
    if not has_room(loaded):
        return ()
    computer = Scenarios(loaded, noise, tokens)
    return tuple(reference_of(np.stack(computer.at_once(text)), noise) for text in texts(tokens))


def has_room(loaded: LoadedModel) -> bool:
    """Whether a text of the scenarios fits the context and a batch."""
    return min(loaded.n_ctx, loaded.n_batch) > PROMPT + STEPS


class Scenarios:
    """The scenarios of one loaded model; each empties the cache. `expected` has the CPU's results."""

    def __init__(self, loaded: LoadedModel, expected: Reference, tokens: list[int]) -> None:
        self._loaded, self._expected = loaded, expected
        self._batch, self._logits = Batch(loaded), Logits(loaded)
        self._tokens, self._texts = tokens, texts(tokens)
        self._alone = expected.alone

    def run(self, seconds: float = SECONDS, *, has_long: bool = True) -> Outcome:
        """Compute the scenarios until one differs. Without `has_long`, none is longer than the short texts.

        Scenarios that were compared with the device's own results only are omitted ones, too.
        Raises: ValueError: a batch could not be decoded, or its output is not a number.
        """
        end, outcome = time.monotonic() + seconds, Outcome([], [], None)
        # A CPU that is too slow for them computed none: then the device's own results are the reference.
        self._alone = self._alone or alone(self._loaded, self._tokens, self._expected)
        for name, scenario in self._possible(has_long=has_long):
            if time.monotonic() > end:
                outcome.omitted.append(name)
                continue
            try:
                nats = scenario(end)
            except OutOfTime:
                outcome.omitted.append(name)
                continue
            finally:
                self._clear()
            (outcome.done if self._expected.alone else outcome.omitted).append(name)
            if nats is not None:
                return outcome._replace(wrong=Wrong(name, nats))
        return outcome

    def _possible(self, *, has_long: bool) -> Iterator[tuple[str, Callable[[float], float | None]]]:
        settings = self._loaded.settings
        cells = max(settings.kv_cells, self._loaded.n_ctx)
        if not self._alone:
            return
        if settings.n_parallel > 1 and cells >= SEQUENCES * (PROMPT + STEPS):
            yield "several sequences in one batch", self._mixed
        yield "a second prompt after an answer", self._second
        if self._loaded.keeps_partial and settings.n_parallel > 1:
            yield "a shared and a truncated prefix", self._shared
        if settings.max_draft and (self._loaded.keeps_partial or self._loaded.max_rollback >= WRONG_DRAFTS):
            yield "drafts that are verified", self._verified
        if has_long and min(self._loaded.n_batch, self._loaded.n_ctx - 1) > self._loaded.n_ubatch:
            yield "a prompt of several ubatches", self._long

    # ---- the scenarios: None if the results are right, else the difference in nats; they raise OutOfTime

    def _mixed(self, end: float) -> float | None:
        """Prompts in a batch with other sequences' answers, and answers of all sequences together."""
        count = min(SEQUENCES, self._loaded.settings.n_parallel)
        for number in range(ROUNDS):
            if number and time.monotonic() > end:
                raise OutOfTime
            for seq, computed in enumerate(self._together(self._texts[:count])):
                if (nats := self._difference(seq, computed)) is not None:
                    return nats
        return None

    def _together(self, rows_of: list[list[int]]) -> list[list[Any]]:
        """The rows of each text. All share one cache: the texts start one after another, the last two together."""
        rows: list[list[Any]] = [[] for _ in rows_of]
        at = [0] * len(rows_of)
        for step in range(len(rows_of) + STEPS):
            for seq, text in enumerate(rows_of):
                if step == min(seq, len(rows_of) - 2):
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
        """The same prompt again after single steps, which may have rewritten weights or left something over."""
        for _ in range(2):
            if (nats := self._difference(0, self._continued(self._texts[0], 0, 0))) is not None:
                return nats
            self._clear()
        return None

    def _shared(self, _end: float) -> float | None:
        """A sequence that begins with another's cells, and one that was cut and continued in two ways."""
        text, half = self._texts[1], PROMPT // 2
        self._batch.add_prompt(text[:PROMPT], 0, 0, last=True)
        self._decoded()
        api, memory = self._loaded.api, self._loaded.memory
        api.llama_memory_seq_cp(memory, 0, 1, 0, half)
        if (nats := self._difference(1, self._continued(text, half, 1))) is not None:
            return nats
        for number in (1, SEQUENCES):  # the same text, and what a full context does: without a part of the middle
            if not api.llama_memory_seq_rm(memory, 0, half, -1):
                return None
            if (nats := self._difference(number, self._continued(self._texts[number], half, 0))) is not None:
                return nats
        return None

    def _verified(self, _end: float) -> float | None:
        """Drafts of which only the first token is right, then, after their removal, drafts that are all right."""
        text, start = self._texts[2], PROMPT + 1
        self._batch.add_prompt(text[:PROMPT], 0, 0, last=True)
        rows = self._decoded()
        for at, token in enumerate([text[PROMPT], *text[:WRONG_DRAFTS]], start=PROMPT):
            self._batch.add(token, at, 0)
        rows += self._decoded()[:1]
        if not self._loaded.api.llama_memory_seq_rm(self._loaded.memory, 0, start, -1):
            return None
        for at in range(start, len(text)):
            self._batch.add(text[at], at, 0)
        return self._difference(2, rows + self._decoded())

    def _long(self, end: float) -> float | None:
        """A prompt of several ubatches in one call, as the server reads it."""
        length = min(int(UBATCHES * self._loaded.n_ubatch), self._loaded.n_batch, self._loaded.n_ctx - 1)
        text = [self._tokens[i * 5 % len(self._tokens)] for i in range(length)]
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
                raise OutOfTime
        self._clear()
        at = 0
        for mark in marks:
            if mark - 1 > at:
                self._batch.add_prompt(text[at : mark - 1], at, 0, last=False)
            self._batch.add(text[mark - 1], mark - 1, 0)
            at = mark
        return self._apart(reference_of(np.stack(expected), self._expected), self._decoded())

    # ---- parts

    def at_once(self, text: list[int]) -> list[Any]:
        """The compared rows of a text that is one batch."""
        self._clear()
        self._batch.add_prompt(text[: PROMPT - 1], 0, 0, last=False)
        for at in range(PROMPT - 1, len(text)):
            self._batch.add(text[at], at, 0)
        rows = self._decoded()
        self._clear()
        return rows

    def _continued(self, text: list[int], start: int, seq: int) -> list[Any]:
        """The compared rows of a text whose first `start` tokens are in the sequence."""
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

    def _difference(self, number: int, computed: list[Any]) -> float | None:
        """How far the rows of a text are from those of the text alone."""
        return self._apart(self._alone[number], computed)

    def _apart(self, expected: Reference, computed: list[Any]) -> float | None:
        check = compare_rows(expected, np.stack(computed))
        limit = max(WRONG_NATS, NOISES * self._expected.noise_kld_mean)
        return None if check.kld_mean <= limit else check.kld_mean

    def _clear(self) -> None:
        self._loaded.api.llama_memory_clear(self._loaded.memory, True)
