"""The ONNX runner's scheduler: a step gives each generating sequence one token, and one prompt a chunk.

onnxruntime-genai has one generator per sequence and does not batch them on a CPU. A finished sequence's generator
stays as a prefix: a request with the same first tokens rolls it back and appends only the difference.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from engine.core.types import GenerationRequest, SamplingParams
from engine.runner import onnx_libraries as libraries
from engine.runner.generation.grammar_mask import TokenConstraint
from engine.runner.generation.sampler import DEFAULT_ORDER, PENALTIES, NotFinite, Sampler
from engine.runner.generation.scheduler import (
    BaseScheduler,
    ConstraintFailed,
    Output,
    SamplingFailed,
    answer_limit,
    context_exceeded,
    must_wait,
    next_in_line,
    problem,
    sample,
)
from engine.runner.generation.sequence import Sequence
from engine.runner.generation.text import TextStream
from engine.runner.load_limits import MAX_DRAFT
from engine.runner.onnx.errors import UnsupportedParameter
from engine.runner.onnx.model import LoadedFolder
from engine.runner.protocol import Fault

# Prompt tokens per step: limits the wait of other requests, and the size of a graph's output with all logits.
CHUNK: Final = 256
# Caches are allocated for their longest length; short responses use a few sizes so that caches can be reused.
SMALLEST_ROOM: Final = 512


@dataclass
class Slot:
    """One generator: `tokens` are in its cache, `room` is the maximum number of tokens, `key` the owner."""

    generator: Any
    room: int
    tokens: list[int] = field(default_factory=list)
    owner: int | None = None
    key: str = ""
    last_used: float = 0.0


class Scheduler(BaseScheduler[Sequence]):
    """Owns the generators. `step` runs the engine; all other methods prepare it or report its state."""

    def __init__(self, loaded: LoadedFolder) -> None:
        super().__init__(loaded.vocabulary)
        self._loaded = loaded
        self._slots: list[Slot] = []
        self._running: dict[int, tuple[Sequence, Slot]] = {}

    @property
    def active(self) -> int:
        """Number of sequences with a generator."""
        return len(self._running)

    @property
    def cells(self) -> tuple[int, int]:
        """Number of tokens in caches, and capacity of the caches."""
        return sum(len(s.tokens) for s in self._slots), sum(s.room for s in self._slots)

    def prefilling(self, request_id: int) -> Any:
        """Return the generator of the only running request while it is in prefill; else None."""
        entry = self._running.get(request_id)
        return entry[1].generator if entry and len(self._running) == 1 and not entry[0].n_generated else None

    def add(
        self,
        request_id: int,
        request: GenerationRequest,
        tokens: list[int],
        constraint: TokenConstraint | None = None,
    ) -> Fault | None:
        """Queue a tokenized request; return a Fault if it cannot run."""
        exceeded = context_exceeded(request_id, len(tokens), self._loaded.n_ctx)
        if exceeded is not None:
            return exceeded
        try:
            self._refuse(request, tokens)
            sampler = NumpySampler(request.sampling, tokens)
        except UnsupportedParameter as error:
            return Fault(id=request_id, code="invalid_request", message=str(error), param=error.param)
        sequence = Sequence(
            request_id,
            request,
            list(tokens),
            len(tokens),
            answer_limit(request, len(tokens), self._loaded.n_ctx),
            sampler,
            TextStream(request.stop),
            constraint,
        )
        sequence.drafter.observe(tokens)
        self._enqueue(sequence)
        return None

    def _refuse(self, request: GenerationRequest, tokens: list[int]) -> None:
        if request.images:
            raise UnsupportedParameter("messages", "The ONNX runner does not read images.")
        if (refusal := problem(request, tokens, self._vocabulary.size)) is not None:
            raise UnsupportedParameter(*refusal)
        if request.prompt_logprobs:
            raise UnsupportedParameter("logprobs", "The ONNX runner has no logprobs of a prompt's own tokens.")
        if request.lora:
            raise UnsupportedParameter("lora", "The ONNX runner loads no adapters.")
        if request.context_shift:
            raise UnsupportedParameter("context_shift", "The ONNX runner cannot shift its context.")

    # ------------------------------------------------------------------ one step

    def step(self) -> list[Output]:
        """Admit, run, sample; return the output to send to the server."""
        out: list[Output] = []
        self._end_cancelled(out)
        self._admit(out)
        running = list(self._running.values())
        prefilling = [pair for pair in running if pair[0].n_generated == 0]
        for sequence, slot in [pair for pair in running if pair[0].n_generated] + prefilling[:1]:
            self._advance(sequence, slot, out)
        if len(prefilling) > 1:  # round robin: the prompt that was read now goes to the end
            first = prefilling[0][0].id
            if first in self._running:
                self._running[first] = self._running.pop(first)
        for sequence, _ in self._running.values():
            if sequence.pending_text or sequence.pending_logprobs:
                delta = sequence.take_pending()
                if delta is not None:
                    out.append((sequence.id, delta))
        return out

    def _admit(self, out: list[Output]) -> None:
        while self._waiting and len(self._running) < self._loaded.settings.n_parallel:
            running = [each for each, _ in self._running.values()]
            sequence = next_in_line(self._waiting, running)
            if must_wait(sequence, running):
                return
            self._waiting.remove(sequence)
            try:
                slot = self._slot_for(sequence)
            except Exception as error:
                self._running.pop(sequence.id, None)
                self._by_id.pop(sequence.id, None)
                text = f"There is no memory for this request's cache: {libraries.reason(error)}"
                out.append(Fault(id=sequence.id, code="cache_full", message=text))
                continue
            slot.owner, slot.key, slot.last_used = sequence.id, sequence.request.owner, time.monotonic()
            self._running[sequence.id] = (sequence, slot)
            self._admitted(sequence, len(slot.tokens), out)

    def _slot_for(self, sequence: Sequence) -> Slot:
        """Return the idle generator with the longest common prefix, else a new one, else the longest idle one.

        Prefixes of other owners do not count.
        """
        tokens, limit, key = sequence.tokens, sequence.limit, sequence.request.owner

        def common(slot: Slot) -> int:
            return _common(slot.tokens, tokens) if slot.key == key else 0

        idle = [s for s in self._slots if s.owner is None]
        fitting = [s for s in idle if s.room >= limit]
        best = max(fitting, key=common, default=None)
        shared = common(best) if best is not None else 0
        # The last token is appended again: after a rollback alone, the next output is not the model's.
        keep = min(shared, len(tokens) - 1)
        full = len(self._slots) >= self._loaded.settings.n_parallel
        if best is not None and (keep > 0 or full):
            return self._rewind(best, keep)
        if full:
            self._slots.remove(min(idle, key=lambda s: s.last_used))
        room = SMALLEST_ROOM
        while room < limit:
            room *= 2
        slot = Slot(self._loaded.generator(min(room, self._loaded.n_ctx)), min(room, self._loaded.n_ctx))
        self._slots.append(slot)
        return slot

    @staticmethod
    def _rewind(slot: Slot, keep: int) -> Slot:
        if keep < len(slot.tokens):
            slot.generator.rewind_to(keep)
            del slot.tokens[keep:]
        return slot

    def _advance(self, sequence: Sequence, slot: Slot, out: list[Output]) -> None:
        missing = sequence.tokens[len(slot.tokens) :][:CHUNK]
        draft = self._draft(sequence) if sequence.n_generated else []
        started_at = time.monotonic()
        try:
            slot.generator.append_tokens(np.array(missing + draft, np.int32))
            slot.tokens += missing + draft
            self.steps += 1
            self.step_times.step(time.monotonic() - started_at, [(sequence, len(missing) + len(draft))])
            if len(slot.tokens) < len(sequence.tokens):
                return
            rows = self._rows(slot, len(draft) + 1)
        except Exception as error:
            self._slots.remove(slot)  # the content of its cache is unknown now
            if sequence.cancelled:
                self._end(sequence, "cancelled", out)
                return
            self._fail(sequence, "engine_failed", libraries.reason(error), out)
            return
        if len(sequence.tokens) >= sequence.limit:  # nothing was to be generated
            self._end(sequence, "length", out)
            return
        self._sample(sequence, slot, rows, draft, out)

    def _rows(self, slot: Slot, count: int) -> Any:
        """Return the logits of the last `count` positions, (count, n_vocab) float32, writable."""
        whole = slot.generator.get_output(self._loaded.folder.logits) if count > 1 else slot.generator.get_logits()
        rows = np.array(whole, np.float32).reshape(-1, np.shape(whole)[-1])
        return rows[-count:, : self._vocabulary.size]

    def _draft(self, sequence: Sequence) -> list[int]:
        """Return an n-gram draft, only if the graph can verify it."""
        if not self._loaded.all_logits or sequence.request.speculate is False or len(self._running) > 1:
            return []
        return sequence.drafter.propose(min(sequence.limit - len(sequence.tokens) - 1, MAX_DRAFT))

    def _sample(self, sequence: Sequence, slot: Slot, rows: Any, draft: list[int], out: list[Output]) -> None:
        before, now = len(sequence.tokens), time.monotonic()
        for i in range(len(draft) + 1):
            try:
                token, logprob = sample(sequence, rows[i], self._vocabulary)
            except ConstraintFailed as error:
                self._stop_unfinished(sequence, str(error), out)
                break
            except SamplingFailed as error:
                self._fail(sequence, "not_finite", str(error), out)
                break
            self._take(sequence, token, logprob, now, out)
            if sequence.id not in self._by_id or i == len(draft) or token != draft[i]:
                break
        new = sequence.tokens[before:]
        if draft:
            right = max(len(new) - 1, 0)
            sequence.drafter.record(len(draft), right)
            sequence.proposed += len(draft)
            sequence.accepted += right
        sequence.drafter.observe(new)
        shared = _common(slot.tokens, sequence.tokens)
        if shared < len(slot.tokens):  # rejected draft tokens
            self._rewind(slot, shared)

    def _forget(self, sequence: Sequence) -> None:
        del self._by_id[sequence.id]
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        entry = self._running.pop(sequence.id, None)
        if entry is not None:
            slot = entry[1]
            background = sequence.request.priority == "background"  # its cache is the first to be reused
            slot.owner, slot.last_used = None, 0.0 if background else time.monotonic()
        sequence.close()


def _common(first: list[int], second: list[int]) -> int:
    """Number of equal leading tokens."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count


# llama.cpp applies XTC only to distributions with at least this many candidates above the threshold.
_XTC_MIN_TOKENS: Final = 2


class NumpySampler(Sampler):
    """The sampling state of one sequence, with the stages of this file."""

    def __init__(self, params: SamplingParams, prompt: list[int]) -> None:
        """Raises: UnsupportedParameter: a stage that exists only in llama.cpp."""
        if params.dry_multiplier > 0:
            raise UnsupportedParameter("dry_multiplier", "The ONNX runner has no DRY sampling; leave it out.")
        if params.mirostat:
            raise UnsupportedParameter("mirostat", "The ONNX runner has no Mirostat; leave it out.")
        if params.adaptive_target >= 0:
            raise UnsupportedParameter("adaptive_target", "The ONNX runner has no adaptive sampling; leave it out.")
        order = DEFAULT_ORDER if params.order is None else params.order
        if PENALTIES in order and order[0] != PENALTIES:
            raise UnsupportedParameter("order", "The ONNX runner applies penalties before every other stage.")
        unknown = [name for name in order if name not in {*STAGES, PENALTIES}]
        if unknown:
            raise UnsupportedParameter("order", f"There is no sampling stage {unknown[0]!r}.")
        super().__init__(params, prompt)
        self._order = tuple(name for name in order if name not in {"dry", PENALTIES})
        self._random = np.random.default_rng(self.seed)

    def _choose(self, row: Any, best: int) -> int:
        if self.greedy:
            return best
        ids = np.flatnonzero(np.isfinite(row))
        ids = ids[np.argsort(-row[ids], kind="stable")]
        logits = row[ids].astype(np.float64)
        for name in self._order:
            chosen, logits = STAGES[name](logits, self._params, self._random)
            ids = ids[chosen]
        weights = np.exp(logits - logits.max())
        share = weights / weights.sum()
        if not np.isfinite(share).all():
            raise NotFinite("the probabilities are not numbers")
        return int(
            ids[int(np.searchsorted(np.cumsum(share), self._random.random(), side="right").clip(0, len(ids) - 1))]
        )


Stage = Callable[[Any, SamplingParams, Any], tuple[Any, Any]]


def _probabilities(logits: Any) -> Any:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def _first(logits: Any, count: int) -> tuple[Any, Any]:
    chosen = np.arange(max(1, min(count, len(logits))))
    return chosen, logits[chosen]


def _all(logits: Any) -> tuple[Any, Any]:
    return np.arange(len(logits)), logits


def _top_k(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    return _first(logits, p.top_k) if p.top_k > 0 else _all(logits)


def _top_p(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    if p.top_p >= 1:
        return _all(logits)
    return _first(logits, int(np.searchsorted(np.cumsum(_probabilities(logits)), p.top_p)) + 1)


def _min_p(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    if p.min_p <= 0:
        return _all(logits)
    return _first(logits, int((logits >= logits.max() + np.log(p.min_p)).sum()))


def _typical(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    if p.typical_p >= 1:
        return _all(logits)
    share = _probabilities(logits)
    surprise = -np.log(np.maximum(share, 1e-300))
    order = np.argsort(np.abs(surprise - (share * surprise).sum()), kind="stable")
    count = int(np.searchsorted(np.cumsum(share[order]), p.typical_p)) + 1
    chosen = np.sort(order[:count])
    return chosen, logits[chosen]


def _top_n_sigma(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    if p.top_n_sigma <= 0:
        return _all(logits)
    return _first(logits, int((logits >= logits.max() - p.top_n_sigma * logits.std()).sum()))


def _xtc(logits: Any, p: SamplingParams, random: Any) -> tuple[Any, Any]:
    """With the given probability, drop all but the least probable of the likely tokens."""
    if p.xtc_probability <= 0 or p.xtc_threshold > 0.5 or random.random() > p.xtc_probability:
        return _all(logits)
    likely = int((_probabilities(logits) >= p.xtc_threshold).sum())
    chosen = np.arange(likely - 1 if likely >= _XTC_MIN_TOKENS else 0, len(logits))
    return chosen, logits[chosen]


def _temperature(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    """Scale logits; with a range, by entropy relative to its maximum. Source: llama.cpp, temp_ext."""
    temperature = p.temperature
    if p.dynatemp_range > 0 and len(logits) > 1:
        low, high = max(0.0, temperature - p.dynatemp_range), temperature + p.dynatemp_range
        share = _probabilities(logits)
        entropy = -(share * np.log(np.maximum(share, 1e-300))).sum() / np.log(len(logits))
        temperature = low + (high - low) * entropy**p.dynatemp_exponent
    return np.arange(len(logits)), logits / max(temperature, 1e-6)


STAGES: Final[dict[str, Stage]] = {
    "dry": lambda logits, _p, _random: _all(logits),
    "top_n_sigma": _top_n_sigma,
    "top_k": _top_k,
    "typical_p": _typical,
    "top_p": _top_p,
    "min_p": _min_p,
    "xtc": _xtc,
    "temperature": _temperature,
}
