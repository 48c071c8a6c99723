"""Compares a device's logits with the CPU's, for the same tokens in the same batches.

The self check compares a device with itself, so it does not detect kernels that are wrong in the same way in every
batch. Here the CPU's plain kernels are the reference. The batches cover the kernels that backends choose by shape:
a prompt (matrix times matrix), one token (matrix times vector) and a few tokens (small batches).
"""

import hashlib
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from devices.msgspec_lock import learned
from engine.core.types import DeviceCheck
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.model import LoadedModel
from engine.runner.llama.native.vocabulary import LlamaVocabulary

VERSION: Final = 2
# Prose, code and numbers in several scripts, to use tokens from all parts of a vocabulary.
TEXTS: Final = (
    (
        "The lighthouse keeper wrote down the weather every evening: wind from the west, force 5, rain after "
        "21:30. In 1987 the lamp was replaced by an automatic one, and he moved to a small house near the "
        "harbour, where he still notes the tides. Le phare est fermé le lundi. Der Turm ist 48 Meter hoch."
    ),
    (
        "def moving_average(values: list[float], width: int) -> list[float]:\n    if width <= 0:\n        raise "
        'ValueError(f"width must be positive, not {width}")\n    sums = [0.0]\n    for value in values:\n        '
        "sums.append(sums[-1] + value)\n    return [(b - a) / width for a, b in zip(sums, sums[width:])]\n"
    ),
)
PROMPT_TOKENS: Final = 64
STEPS: Final = 6
SMALL_BATCH: Final = 4
# llama.cpp is configured for at most 17 outputs of one sequence in a batch (model.py).
PROMPT_OUTPUTS: Final = 16
# The reference stores this many of the most likely tokens per row; the others count together.
KEPT_TOKENS: Final = 256


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU's result: the most likely tokens of each row (int32) and their log probabilities (float32).

    `rows` rows of `width` entries each, row after row, little-endian; `version` and `tokens` identify the
    computation. `noise_kld_mean` and `noise_kld_max` (nats) are the KL divergence of the CPU's other attention
    kernels from these: the effect of only the order of additions in this model. `alone` has the results for the
    texts of the scenarios, each computed by itself.
    """

    version: int
    tokens: str
    rows: int
    width: int
    token_ids: bytes
    logprobs: bytes
    noise_kld_mean: float = 0.0
    noise_kld_max: float = 0.0
    alone: "tuple[Reference, ...]" = ()


# A margin between the two most likely tokens that no correct kernel reverses. Measured: the log, device check.
SURE_NATS: Final = 0.5


# A device is wrong if it exceeds both these limits and a multiple of the model's own noise. Correct devices have at
# most 0.7 of the noise if activations have 8 bits, else 2e-4 in the mean and 5e-3 in a row (an MoE model's routing
# at a near tie). Faults that change responses start at 1e-3. Measured: log-archive.md, device check.
WRONG_KLD_MEAN: Final = 0.001
# OpenVINO multiplies in bfloat16 on CPUs that support it: 1.1e-3 in the mean and 5e-3 in a row for 16-bit weights,
# while a wrong type (4 bits with a rounded zero point) has 0.38. Measured: log-archive.md, OpenVINO.
WRONG_KLD_MEAN_BFLOAT: Final = 0.002
WRONG_KLD_ROW: Final = 0.03
NOISE_FACTOR: Final = 3.0
WRONG_TOP_FRAC: Final = 0.03
# Repeats the same few tokens to find intermittent faults, until this many rounds or the additional time of a first
# load is over. A correct device repeats its results (llvmpipe, CPU: to the bit).
# A round is a small batch and one token, for which the device's kernels are ready by now.
ROUNDS: Final = 24
ROUNDS_S: Final = 1.5
UNSTEADY_KLD: Final = WRONG_KLD_MEAN / 5
# Results below this fraction of the limits need no further checks. Measured: log-archive.md, device check.
DOUBT: Final = 5.0


class DeviceWrong(Exception):
    """The device's results differ from the CPU's; `found` has the numbers, or None if it gave none."""

    def __init__(self, reason: str, found: DeviceCheck | None) -> None:
        super().__init__(reason)
        self.found = found


class NotComparable(Exception):
    """The reference belongs to another version or model."""


def prompts(loaded: LoadedModel, vocabulary: LlamaVocabulary) -> list[list[int]]:
    """Return the token sequences to compute, as long as the context permits."""
    room = min(loaded.n_ctx, loaded.n_batch)
    most = max(1, min(PROMPT_TOKENS + STEPS + SMALL_BATCH, room))
    token_lists = [vocabulary.tokenize(text, add_special=True, parse_special=False)[:most] for text in TEXTS]
    return [tokens for tokens in token_lists if tokens] or [[0]]


def token_key(sequences: list[list[int]]) -> str:
    """Return a hash of the tokens that were computed."""
    return hashlib.sha256(repr(sequences).encode()).hexdigest()[:16]


def logprob_rows(loaded: LoadedModel, sequences: list[list[int]]) -> Any:
    """Return log probabilities, shape (rows, n_vocab), float32, in a fixed order; empties the cache.

    Raises: ValueError: a batch could not be decoded, or its output is not a number; the message says which.
    """
    batch, logits = Batch(loaded), Logits(loaded)
    rows: list[Any] = []
    for tokens in sequences:
        at = 0
        for length, outputs in _batches(len(tokens), single=loaded.settings.max_draft == 0):
            first = at + length - outputs
            if first > at:
                batch.add_prompt(tokens[at:first], at, 0, last=False)
            for i in range(first, at + length):
                batch.add(tokens[i], i, 0)
            code = batch.decode()
            if code != 0:
                raise ValueError(f"a batch of {length} tokens could not be decoded (llama_decode returned {code})")
            rows += [log_softmax(row) for row in logits.rows(batch.outputs)[: batch.outputs]]
            batch.clear()
            at += length
        loaded.api.llama_memory_clear(loaded.memory, True)
    return np.stack(rows)


def _batches(total: int, *, single: bool = False) -> list[tuple[int, int]]:
    """Return (tokens, outputs) of each batch: the prompt, single tokens, then a small batch.

    `single`: one output per batch and steps of one token only, for devices whose graphs have fixed shapes.
    """
    if single:
        steps = min(STEPS + SMALL_BATCH, total - 1)
        return [(total - steps, 1)] + [(1, 1)] * steps
    prompt = max(1, total - STEPS - SMALL_BATCH)
    batches = [(prompt, min(prompt, PROMPT_OUTPUTS))]
    steps = min(STEPS, total - prompt)
    batches += [(1, 1)] * steps
    if total > prompt + steps:
        batches.append((total - prompt - steps, total - prompt - steps))
    return batches


def log_softmax(row: Any) -> Any:
    """Log softmax of one row of logits (n_vocab,). Masked tokens (minus infinity) stay masked."""
    values = row.astype(np.float64)
    largest = values.max()
    if not np.isfinite(largest) or np.isnan(values).any():
        raise ValueError("the output is not a number")
    return (values - largest - np.log(np.exp(values - largest).sum())).astype(np.float32)


def reference(loaded: LoadedModel, vocabulary: LlamaVocabulary) -> Reference:
    """Compute the reference with a model that was loaded for the CPU. Raises: ValueError: as logprob_rows."""
    sequences = prompts(loaded, vocabulary)
    return reference_of(logprob_rows(loaded, sequences), tokens=token_key(sequences))


def reference_of(rows: Any, noise: Reference | None = None, tokens: str = "") -> Reference:
    """A reference of log probabilities (rows, n_vocab), with the noise of another one of the same model."""
    width = min(KEPT_TOKENS, rows.shape[1])
    ids = np.argpartition(-rows, width - 1, axis=1)[:, :width].astype("<i4")
    return Reference(
        version=VERSION,
        tokens=tokens,
        rows=len(rows),
        width=width,
        token_ids=ids.tobytes(),
        logprobs=np.take_along_axis(rows, ids, axis=1).astype("<f4").tobytes(),
        noise_kld_mean=noise.noise_kld_mean if noise is not None else 0.0,
        noise_kld_max=noise.noise_kld_max if noise is not None else 0.0,
    )


def compare(expected: Reference, loaded: LoadedModel, vocabulary: LlamaVocabulary) -> DeviceCheck:
    """Compute the same with a model on a device, and compare.

    Raises: NotComparable: the reference is another model's. ValueError: as logprob_rows.
    """
    sequences = prompts(loaded, vocabulary)
    if expected.version != VERSION or expected.tokens != token_key(sequences):
        raise NotComparable("the reference was computed from other tokens")
    return compare_rows(expected, logprob_rows(loaded, sequences))


def compare_rows(expected: Reference, rows: Any) -> DeviceCheck:
    """Compare the reference with log probabilities (rows, n_vocab) of a device. Raises: NotComparable."""
    if rows.shape[0] != expected.rows or rows.shape[1] < expected.width:
        raise NotComparable(f"{rows.shape[0]} rows where the reference has {expected.rows}")
    shape = (expected.rows, expected.width)
    ids = np.frombuffer(expected.token_ids, "<i4").reshape(shape)
    logp = np.frombuffer(expected.logprobs, "<f4").reshape(shape).astype(np.float64)
    logq = np.take_along_axis(rows, ids, axis=1).astype(np.float64)
    p, q = np.exp(logp), np.exp(logq)
    possible = p > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(possible, p * (logp - logq), 0.0)
    tail_p, tail_q = np.clip(1 - p.sum(1), 1e-9, 1), np.clip(1 - q.sum(1), 1e-9, 1)
    kld = np.maximum(0.0, terms.sum(1) + tail_p * np.log(tail_p / tail_q))
    ordered = np.sort(logp, axis=1)
    sure = ordered[:, -1] - ordered[:, -2] > SURE_NATS if expected.width > 1 else np.ones(len(logp), bool)
    top = np.take_along_axis(ids, logp.argmax(1)[:, None], axis=1)[:, 0]
    changed = (rows.argmax(1) != top) & sure
    difference = np.abs(np.where(possible, logq - logp, 0.0))
    return DeviceCheck(
        rows=expected.rows,
        kld_mean=float(kld.mean()),
        kld_max=float(kld.max()),
        top_changed_frac=float(changed.mean()),
        logprob_difference=float(difference.max()),
    )


def unsteadiness(loaded: LoadedModel, tokens: list[int]) -> float:
    """Return the largest KL divergence, in nats, between a device's first and later results for the same tokens.

    A round is a small batch and a single token, from an empty cache. Raises: ValueError: the output is invalid.
    """
    batch, logits = Batch(loaded), Logits(loaded)
    tokens = tokens[: SMALL_BATCH + 1]
    first: Any = None
    largest, end = 0.0, time.monotonic() + ROUNDS_S
    for _ in range(ROUNDS):
        rows = []
        for at, length in ((0, len(tokens) - 1), (len(tokens) - 1, 1)):
            if length:
                batch.add_prompt(tokens[at : at + length], at, 0, last=True)
                code = batch.decode()
                if code != 0:
                    raise ValueError(
                        f"a batch of {length} tokens could not be decoded (llama_decode returned {code})"
                    )
                rows.append(log_softmax(logits.rows(1)[0]))
                batch.clear()
        loaded.api.llama_memory_clear(loaded.memory, True)
        if first is None:
            first = rows
        for baseline, row in zip(first, rows, strict=True):
            present = np.isfinite(baseline) & np.isfinite(row)
            largest = max(largest, float((np.exp(baseline) * (baseline - row))[present].sum()))
        if time.monotonic() > end:
            break
    return largest


def is_wrong(check: DeviceCheck, expected: Reference, floor: float = WRONG_KLD_MEAN) -> bool:
    """Whether the device's results differ from the CPU's, by more than `floor` nats in the mean. NaN is wrong."""
    return not (
        check.kld_mean <= max(floor, NOISE_FACTOR * expected.noise_kld_mean)
        and check.kld_max <= max(WRONG_KLD_ROW, NOISE_FACTOR * expected.noise_kld_max)
        and check.top_changed_frac <= WRONG_TOP_FRAC
    )


def is_doubtful(check: DeviceCheck, floor: float = WRONG_KLD_MEAN) -> bool:
    """Whether only the model's own noise explains the total difference, so that it may hide a fault."""
    return not (check.kld_mean <= floor / DOUBT and check.kld_max <= WRONG_KLD_ROW / DOUBT)


def read_reference(path: Path) -> Reference | None:
    """Return a stored reference; None if there is no readable one."""
    try:
        reference = msgspec.msgpack.decode(path.read_bytes(), type=learned(Reference))
    except (OSError, ValueError, RecursionError):
        return None
    is_sound = reference.version == VERSION and all(map(_is_whole, (reference, *reference.alone)))
    return reference if is_sound else None


def _is_whole(reference: Reference) -> bool:
    size = 4 * reference.rows * reference.width
    return len(reference.token_ids) == size == len(reference.logprobs)
