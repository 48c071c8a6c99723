"""Records rows of logits of real answers, and computes them again with the CPU's plain kernels.

The checks at a load compare short prompts. A device may become wrong later: after hours, at depth, or in a shape of
batch that no check had. So one of some hundred rows is recorded with the tokens before it, without the request's
identity. The server has such rows computed again while nothing else runs (engine/server/canary.py).
"""

import time
from collections import deque
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from engine.core.types import GenerationRequest
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.device_check import (
    KEPT_TOKENS,
    VERSION,
    Reference,
    compare_rows,
    log_softmax,
    reference_of,
)
from engine.runner.llama.native.model import LoadedModel, load, metadata_of
from engine.runner.llama.native.scenarios import NOISES, WRONG_NATS
from engine.runner.protocol import LoadSettings, RowsRecorded, RowVerdict, SampledRow

# A row is computed again from its tokens. Reported faults began at depths up to 7,500 tokens.
LONGEST: Final = 8192
# Rows of one answer are compared for the price of its longest text; each takes 2 KB here.
ROWS: Final = 8
# Maximum number of answers whose rows wait for the next pause of the runner.
ANSWERS: Final = 4
# Choose their rotary factors by the size of the context, which is smaller on the CPU. Source: llama-model.cpp,
# get_rope_factors, rope_long.
FACTORS_BY_CONTEXT: Final = frozenset({"phi3", "phimoe", "minicpm3"})
PIECE: Final = 256
# Stands for the distance of a row that is not a number.
UNDEFINED_NATS: Final = 99.0


class Answer(Protocol):
    """A request that generates; see `engine.runner.llama.sequence`."""

    request: GenerationRequest
    tokens: list[int]
    forgotten: int
    recorded_rows: list[SampledRow]

    @property
    def media(self) -> object | None: ...


class RowRecorder:
    """Records one row of `every`, of texts that the CPU can compute alike: no adapters, no images, no shift."""

    def __init__(self, loaded: LoadedModel, every: int) -> None:
        architecture = metadata_of(loaded).get("general.architecture") if every else ""
        self._every = 0 if architecture in FACTORS_BY_CONTEXT else every
        self._left = self._every
        self._answers: deque[RowsRecorded] = deque(maxlen=ANSWERS)
        self._spent_s = 0.0

    def see(self, sequence: Answer, row: Any, batch: Batch) -> None:
        """Count a row of logits (n_vocab,), and record it if it is due. Call it before the row is changed."""
        if not self._every:
            return
        self._left -= 1
        if self._left > 0 or not self._is_comparable(sequence):
            return
        self._left, started = self._every, time.monotonic()
        try:
            reference = reference_of(log_softmax(row)[None])
        except ValueError:  # not a number: the scheduler finds that itself
            return
        rows = sequence.recorded_rows
        if len(rows) == ROWS:
            del rows[::2]
        rows.append(
            SampledRow(
                position=len(sequence.tokens) - 1,
                token_ids=reference.token_ids,
                logprobs=reference.logprobs,
                batch_rows=batch.size,
                sequences=len(batch.runs()),
            )
        )
        self._spent_s += time.monotonic() - started

    def record_undefined(self, sequence: Answer) -> None:
        """Record the row of a request that ends since its logits are not numbers: the device may be the cause."""
        if self._every and self._is_comparable(sequence):
            row = SampledRow(position=len(sequence.tokens) - 1, token_ids=b"", logprobs=b"")
            sequence.recorded_rows = [row]

    @staticmethod
    def _is_comparable(sequence: Answer) -> bool:
        if sequence.media is not None or sequence.request.lora or sequence.forgotten:
            return False
        return 1 < len(sequence.tokens) <= LONGEST

    def end(self, sequence: Answer, steps_s: float) -> None:
        """An answer ended; `steps_s` are the seconds of all steps since the load."""
        rows, sequence.recorded_rows = sequence.recorded_rows, []
        if rows and not sequence.forgotten:
            tokens = sequence.tokens[: rows[-1].position + 1]
            self._answers.append(RowsRecorded(tokens=tokens, rows=rows, steps_s=steps_s, recording_s=self._spent_s))

    def take(self) -> list[RowsRecorded]:
        """The rows of the answers that ended since the last call."""
        recorded = list(self._answers)
        self._answers.clear()
        return recorded


def judged(api: Any, settings: LoadSettings, recorded: RowsRecorded) -> RowVerdict:
    """Compute the recorded rows with these settings, and if they differ once more with other kernels.

    A row is wrong if both differ from it by more than the scenarios allow, or if it alone is not a number.

    Raises: LoadFailed. ValueError: a batch could not be decoded, or the CPU's own result is not a number.
    """
    if recorded.is_undefined:
        computed_rows(api, settings, recorded)
        return RowVerdict(nats=UNDEFINED_NATS, largest_nats=UNDEFINED_NATS, wrong=True)
    reference = _recorded(recorded.rows)
    first = computed_rows(api, settings, recorded)
    check = compare_rows(reference, first)
    if check.kld_mean <= WRONG_NATS:
        return RowVerdict(nats=check.kld_mean, largest_nats=check.kld_max)
    # a quantized cache needs flash attention, so its effect is part of the noise
    other = msgspec.structs.replace(settings, flash_attn="off", type_k="f16", type_v="f16")
    if settings.flash_attn == "off":
        other = msgspec.structs.replace(other, flash_attn="on")
    second = computed_rows(api, other, recorded)
    again = compare_rows(reference, second).kld_mean
    noise = compare_rows(reference_of(first), second).kld_mean
    return RowVerdict(
        nats=check.kld_mean,
        largest_nats=check.kld_max,
        again_nats=again,
        noise_nats=noise,
        wrong=not min(check.kld_mean, again) <= max(WRONG_NATS, NOISES * noise),
    )


def computed_rows(api: Any, settings: LoadSettings, recorded: RowsRecorded) -> Any:
    """Log probabilities (rows, n_vocab) after each recorded position, of the text alone. Raises: as `judged`."""
    cells = len(recorded.tokens) + 1
    settings = msgspec.structs.replace(settings, n_ctx=cells, n_batch=min(PIECE, cells), n_ubatch=min(PIECE, cells))
    loaded = load(api, settings, lambda _fraction: True)
    try:
        batch, logits, rows, at = Batch(loaded), Logits(loaded), list[Any](), 0
        for row in recorded.rows:
            while at <= row.position:
                upto = min(row.position + 1, at + PIECE)
                batch.add_prompt(recorded.tokens[at:upto], at, 0, last=upto == row.position + 1)
                code = batch.decode()
                if code != 0:
                    raise ValueError(f"{upto - at} tokens could not be decoded (llama_decode returned {code})")
                if batch.outputs:
                    rows.append(log_softmax(logits.rows(1)[0]))
                batch.clear()
                at = upto
        return np.stack(rows)
    finally:
        loaded.close()


def _recorded(rows: list[SampledRow]) -> Reference:
    width = min(KEPT_TOKENS, len(rows[0].token_ids) // 4)
    return Reference(
        version=VERSION,
        tokens="",
        rows=len(rows),
        width=width,
        token_ids=b"".join(row.token_ids for row in rows),
        logprobs=b"".join(row.logprobs for row in rows),
    )
