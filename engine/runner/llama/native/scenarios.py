"""Computes several sequences and long prompts as the server does, and compares them with each sequence alone.

The device check computes one sequence of 64 tokens. Drivers were wrong only with several sequences in one batch,
with a prompt next to answers, with a prompt of several ubatches, with a second prompt, or with some number of rows.
The reference for each short text is the CPU's result for it alone. A long prompt would take the CPU too long at a
first load: it is compared with the device's own results in short pieces, and with the CPU's while the computer is
idle (deep_check_child).
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.device_check import Reference, compare_rows, log_softmax, reference_of
from engine.runner.llama.native.model import LoadedModel, LoadFailed, exact_context, padded
from engine.runner.load_limits import exact_settings

SEQUENCES: Final = 4
# Most sequences in one batch; they repeat the texts of the first four.
WIDEST: Final = 16
PROMPT: Final = 40
STEPS: Final = 6
# The step of each round in which the last texts start. Faults were seen in one of three or four decodes; a round
# has about ten of them.
ROUNDS: Final = (2, 3, 1, 0, 2, 3)
# Ubatches of the long prompt, and the pieces in which it is computed for comparison. Its end fills no tile of a
# kernel.
UBATCHES: Final = 2.5
UNEVEN: Final = 9
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


class Omitted(Exception):
    """The time or the memory was too small for a whole scenario."""


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
    """The scenarios of one loaded model; each empties the cache. `expected` has the CPU's results.

    `unquantized` has those for the cache types of deterministic requests, if the load has other ones.
    """

    def __init__(
        self, loaded: LoadedModel, expected: Reference, tokens: list[int], unquantized: Reference | None = None
    ) -> None:
        self._loaded, self._expected, self._unquantized = loaded, expected, unquantized
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
            except Omitted:
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
        yield "a restored prefix", self._restored
        if settings.max_draft and (self._loaded.keeps_partial or self._loaded.max_rollback >= WRONG_DRAFTS):
            yield "drafts that are verified", self._verified
        yield "a deterministic request", self._fixed
        if has_long and self._loaded.n_ctx - 1 > self._loaded.n_ubatch + UNEVEN:
            yield "a prompt of several ubatches", self._long

    # ---- the scenarios: None if the results are right, else the difference in nats; they raise Omitted

    def _mixed(self, end: float) -> float | None:
        """Prompts in a batch with other sequences' answers, and answers of all sequences together."""
        loaded = self._loaded
        cells = max(loaded.settings.kv_cells, loaded.n_ctx)
        most = min(loaded.settings.n_parallel, WIDEST, cells // (PROMPT + STEPS), loaded.n_batch - PROMPT)
        rounds = [(min(SEQUENCES, most), latest) for latest in ROUNDS]
        for number, (count, latest) in enumerate([*rounds, (most, 2)] if most > SEQUENCES else rounds):
            if number and time.monotonic() > end:
                raise Omitted
            rows_of = [self._texts[seq % SEQUENCES] for seq in range(count)]
            for seq, computed in enumerate(self._together(rows_of, latest)):
                if (nats := self._difference(seq % SEQUENCES, computed)) is not None:
                    return nats
        return None

    def _together(self, rows_of: list[list[int]], latest: int) -> list[list[Any]]:
        """The rows of each text. All share one cache: the texts start one after another, the last ones together.

        `latest` is the step in which the last ones start, unless their batch is full.
        """
        rows: list[list[Any]] = [[] for _ in rows_of]
        at, count, step = [0] * len(rows_of), len(rows_of), 0
        while any(at[seq] < len(text) for seq, text in enumerate(rows_of)):
            for seq, text in enumerate(rows_of):
                if PROMPT <= at[seq] < len(text):
                    self._batch.add(text[at[seq]], at[seq], seq)
                    at[seq] += 1
                    continue
                is_due = not at[seq] and step >= min(seq * SEQUENCES // count, latest)
                if is_due and self._batch.room >= PROMPT + count - seq - 1:
                    self._batch.add_prompt(text[:PROMPT], 0, seq, last=True)
                    at[seq] = PROMPT
            present = [seq for seq, _ in self._batch.runs()]
            for seq, row in zip(present, self._decoded() if present else (), strict=True):
                rows[seq].append(row)
            step += 1
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

    def _restored(self, _end: float) -> float | None:
        """A prefix whose state was copied to memory, and back into another sequence of an empty cache."""
        text, half = self._texts[3], PROMPT // 2
        self._batch.add_prompt(text[:half], 0, 0, last=True)
        self._decoded()
        api, context = self._loaded.api, self._loaded.context
        size = int(api.llama_state_seq_get_size(context, 0))
        data = np.empty(size, np.uint8)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        copied = api.llama_state_seq_get_data(context, pointer, size, 0) == size
        self._clear()
        target = min(1, self._loaded.n_seq_max - 1)
        if not copied or not api.llama_state_seq_set_data(context, pointer, size, target):
            return None  # then the server computes the prefix again
        return self._difference(3, self._continued(text, half, target))

    def _verified(self, end: float) -> float | None:
        """Drafts of which only the first token is right, then, after their removal, drafts that are all right.

        Then each number of rows that a step with drafts may have: kernels are chosen by it.
        """
        text, start = self._texts[2], PROMPT + 1
        self._batch.add_prompt(text[:PROMPT], 0, 0, last=True)
        rows = self._decoded()
        for at, token in enumerate([text[PROMPT], *text[:WRONG_DRAFTS]], start=PROMPT):
            self._batch.add(token, at, 0)
        rows += self._decoded()[:1]
        remove, memory = self._loaded.api.llama_memory_seq_rm, self._loaded.memory
        if not remove(memory, 0, start, -1):
            return None
        rows += self._read(text, range(start, len(text)), start)
        nats = self._difference(2, rows)
        for number in range(self._loaded.settings.max_draft + 1, 1, -1) if self._loaded.keeps_partial else ():
            if nats is not None or not remove(memory, 0, len(text) - number, -1):
                break
            if time.monotonic() > end:
                raise Omitted
            new = self._read(text, range(len(text) - number, len(text)), len(text) - number)[-len(rows) :]
            nats = self._difference(2, rows[: len(rows) - len(new)] + new)
        return nats

    def _fixed(self, end: float) -> float | None:
        """Whole chunks, then single steps, in a context like that of deterministic requests."""
        cells = min(self._loaded.n_ctx, padded(2 * exact_settings(self._loaded.settings).n_batch))
        small = msgspec.structs.replace(self._loaded.settings, n_ctx=cells, max_ctx=0)
        try:
            exact = exact_context(replace(self._loaded, settings=small))
        except LoadFailed as error:
            raise Omitted from error
        try:
            computer = Scenarios(exact, self._unquantized or self._expected, self._tokens)
            has_cpu = self._unquantized is not None or _types(exact) == _types(self._loaded)
            nats = computer.in_chunks(end, has_cpu=has_cpu)
        finally:
            self._loaded.api.llama_free(exact.context)
        if nats is None and not has_cpu:  # compared with the device's own results only
            raise Omitted
        return nats

    def in_chunks(self, end: float, *, has_cpu: bool) -> float | None:
        """The difference between chunks and smaller pieces, after that of a short text from the CPU's result."""
        if has_cpu and self._alone and (nats := self._difference(0, self._continued(self._texts[0], 0, 0))):
            return nats
        self._clear()
        chunk = self._loaded.n_batch
        text = self._long_text(min(chunk + PROMPT, self._loaded.n_ctx - 1 - STEPS) + STEPS)
        prompt = len(text) - STEPS
        marks, steps = _marks(prompt), range(prompt, len(text))
        expected = self._read(text, [*marks, *steps], piece=min(PIECE, chunk // 2), end=end)
        self._clear()
        computed = self._read(text[:prompt], marks) + self._read(text, steps, prompt, piece=1)
        return self._apart(reference_of(np.stack(expected), self._expected), computed)

    def _long(self, end: float) -> float | None:
        """A prompt of several ubatches, as the server reads it, then the same next to another sequence."""
        loaded = self._loaded
        text = self._long_text(min(int(UBATCHES * loaded.n_ubatch) - UNEVEN, loaded.n_ctx - 1))
        marks = _marks(len(text))
        expected = reference_of(np.stack(self._read(text, marks, piece=PIECE, end=end)), self._expected)
        self._clear()
        if (nats := self._apart(expected, self._read(text, marks))) is not None:
            return nats
        cells = max(loaded.settings.kv_cells, loaded.n_ctx)
        if loaded.settings.n_parallel == 1 or cells < len(text) + PROMPT + STEPS:
            return None
        if time.monotonic() > end:
            raise Omitted
        self._clear()
        other = self._texts[1]
        self._batch.add_prompt(other[:PROMPT], 0, 1, last=True)
        first, *rows = self._read(text, marks)
        if (nats := self._apart(expected, rows)) is not None:
            return nats
        steps = []
        for at in range(PROMPT, len(other)):
            self._batch.add(other[at], at, 1)
            steps += self._decoded()
        return self._difference(1, [first, *steps])

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

    def _long_text(self, length: int) -> list[int]:
        return [self._tokens[i * 5 % len(self._tokens)] for i in range(length)]

    def _read(
        self, text: list[int], outputs: Iterable[int], start: int = 0, piece: int = 0, end: float = float("inf")
    ) -> list[Any]:
        """The rows of a text from `start` on, at the positions of `outputs`, in full batches or smaller pieces.

        The batch may have rows of another sequence already. Raises: Omitted: it would take far longer than `end`.
        """
        outputs, rows, started = frozenset(outputs), list[Any](), time.monotonic()
        for at in range(start, len(text)):
            if at in outputs:
                self._batch.add(text[at], at, 0)
            else:
                self._batch.add_prompt(text[at : at + 1], at, 0, last=False)
            is_full = self._batch.size >= (piece or self._loaded.n_batch) or self._batch.outputs > MAX_OUTPUTS
            if is_full or at == len(text) - 1:
                rows += self._decoded()
                left_s = (time.monotonic() - started) * (len(text) - at) / (at + 1)
                if at < len(text) // 4 and time.monotonic() + left_s > end + SECONDS:
                    raise Omitted
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


def _marks(length: int) -> list[int]:
    """Positions of a text of this length whose results are compared, the last one of which is its end."""
    return sorted({max(1, length * (i + 1) // MAX_OUTPUTS) - 1 for i in range(MAX_OUTPUTS)})


def _types(loaded: LoadedModel) -> tuple[str, str]:
    return loaded.settings.type_k, loaded.settings.type_v
