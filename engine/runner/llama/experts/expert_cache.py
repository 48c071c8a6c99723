"""Caches the experts that are used often, and those that the current layer needs.

llama.cpp's scheduler reports each layer's routing before its experts are computed. Missing experts are then read
and replace the least used ones. If a routing was not reported, the kernel reads the pages as for any mapped file,
so the results never depend on this cache.
"""

import ctypes
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from engine.core.expert_stats import HALF_LIFE_TOKENS, RANKS, ExpertUse
from engine.runner.expert_tensors import PAGE, READERS
from engine.runner.llama.experts.expert_layout import FileChanged, NotMapped, Parts, Span, Stack, find
from engine.runner.llama.experts.page_swap import NoPages, Pages
from engine.runner.llama.native.llama_api import KernelsMissing, ggml
from engine.runner.llama.native.tensor_layout import F32, Tensor, check_layout
from engine.runner.protocol import ExpertStats
from quantize.files.gguf_split import GgufModel

# Threads that read experts: requested ones first, then those that will probably be requested.

Part = Callable[..., None]


@dataclass(slots=True, eq=False)
class ReadJob:
    """A job that reads one expert, given by layer and number, in place of `victim`.

    `parts` get the number of the reader they run on. `prefetch`: the expert is not requested yet. `urgent`: a step
    waits for it.
    """

    expert: tuple[int, int]
    parts: Sequence[Part]
    prefetch: bool = False
    victim: tuple[int, int] | None = None
    left: int = field(init=False)
    urgent: bool = False
    begun: bool = False

    def __post_init__(self) -> None:
        self.left = len(self.parts)


class Readers:
    """A few reader threads. `failure` is the first error; nothing is read after it."""

    def __init__(self, count: int, done: Callable[[ReadJob], None]) -> None:
        """Start the threads. `done` is called after the last part of each job, on the thread that read it."""
        self._done = done
        self._news = threading.Condition()
        self._urgent: deque[tuple[ReadJob, Part]] = deque()
        self._ahead: deque[ReadJob] = deque()
        self._ended = False
        self.failure: Exception | None = None
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"experts-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to read."""
        return not self._urgent and not self._ahead

    def ahead(self, jobs: Iterable[ReadJob]) -> None:
        """Queue jobs to run when no urgent job waits."""
        with self._news:
            self._ahead.extend(jobs)
            self._news.notify_all()

    def cancel(self, which: Callable[[ReadJob], bool]) -> list[ReadJob]:
        """Cancel queued prefetches that have not started and match `which`; return them."""
        with self._news:
            cancelled = [job for job in self._ahead if which(job)]
            for job in cancelled:
                self._ahead.remove(job)
        return cancelled

    def last_ahead(self) -> ReadJob | None:
        """Cancel the last job of the prefetch queue; return it."""
        with self._news:
            return self._ahead.pop() if self._ahead else None

    def wait_for(self, jobs: list[ReadJob]) -> None:
        """Run these jobs before all others, and return when they are done. Raises: `failure`."""
        with self._news:
            for job in jobs:
                job.urgent = True
                if not job.begun:
                    if job in self._ahead:
                        self._ahead.remove(job)
                    self._begin(job)
            self._news.notify_all()
            while any(job.left for job in jobs) and self.failure is None:
                self._news.wait()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """End the threads; reads in progress are completed."""
        with self._news:
            self._ended = True
            self._urgent.clear()
            self._ahead.clear()
            self._news.notify_all()
        for thread in self._threads:
            thread.join()

    def _begin(self, job: ReadJob) -> None:
        job.begun = True
        self._urgent.extend((job, part) for part in job.parts)

    def _next(self) -> tuple[ReadJob, Part] | None:
        with self._news:
            while True:
                if self._ended or self.failure is not None:
                    return None
                if not self._urgent and self._ahead:
                    self._begin(self._ahead.popleft())
                if self._urgent:
                    return self._urgent.popleft()
                self._news.wait()

    def _work(self, room: int) -> None:
        while (queued := self._next()) is not None:
            job, part = queued
            try:
                part(room=room)
            except (OSError, FileChanged, NoPages) as error:
                with self._news:
                    self.failure = self.failure or error
                    self._news.notify_all()
                return
            with self._news:
                job.left -= 1
                if not job.left:
                    self._done(job)
                    if job.urgent:
                        self._news.notify_all()


# Source: llama-graph.cpp, build_moe_ffn: the experts of each token, as a view of int32 (used, tokens).
_ROUTING: Final = b"ffn_moe_topk-"
_NAME_AT: Final = Tensor.name.offset
# A step with more tokens is a prompt chunk, which requests most experts of every layer.
_FEW_TOKENS: Final = 16
# Number of eviction candidates ranked per pass; a pass takes as long as reading two pages.
_RANKED: Final = 64
# Ranks of requested experts are recorded for one layer in this many, and only after the first tokens.
_RANKED_EACH: Final = 5
_LEARNING_TOKENS: Final = 64
_Expert = tuple[int, int]


class CannotStream(Exception):
    """This load's experts cannot be streamed; the message says why."""


@dataclass(slots=True)
class _Counts:
    asked: int = 0
    there: int = 0
    read_bytes: int = 0
    waited_s: float = 0.0


class ExpertStream:
    """Streams the experts of one load. Create it before the load, for its `callback`; call `begin` after it.

    All contexts of the model must have the callback: while one context computes a layer, experts do not move for
    another one.
    """

    def __init__(self, api: Any) -> None:
        """Raises: CannotStream: this library's tensor layout is unknown."""
        try:
            check_layout(ggml(api))
        except KernelsMissing as error:
            raise CannotStream(str(error)) from error
        self.callback = api.ggml_backend_sched_eval_callback(self._on_node)
        self._has_started = False
        self._failure: BaseException | None = None
        self._counts = _Counts()
        self._used_bytes = 0

    def begin(self, model: GgufModel, capacity_bytes: int, earlier: ExpertUse) -> None:
        """Cache up to `capacity_bytes` of experts from now on, starting with the most used ones in `earlier`.

        Raises: CannotStream.
        """
        head = model.parts[0]
        experts = head.arch_int("expert_count") or 0
        trunk = (head.arch_int("block_count") or 0) - (head.arch_int("nextn_predict_layers") or 0)
        try:
            self._parts = Parts(model)
        except OSError as error:
            raise CannotStream(str(error)) from error
        try:
            self._layers = find(model, self._parts, experts, trunk)
            largest = max(stack.expert_bytes for stacks in self._layers.values() for stack in stacks)
            self._pages = Pages(self._parts, largest, READERS)
        except (NotMapped, NoPages, OSError) as error:
            self._parts.close()
            raise CannotStream(str(error)) from error
        self._capacity_bytes = capacity_bytes - READERS * (largest + 2 * PAGE)
        self._rows = {layer: row for row, layer in enumerate(self._layers)}
        self._stacks: list[tuple[Stack, ...]] = list(self._layers.values())
        self._sizes = [sum(-(-s.expert_bytes // PAGE) * PAGE + PAGE for s in stacks) for stacks in self._stacks]
        self._there = np.zeros((len(self._stacks), experts), bool)
        self._score = np.zeros((len(self._stacks), experts))
        self._ranks = np.zeros(RANKS)
        self._tokens = 0.0
        self._noted = 0
        self._take(earlier)
        self._coming: dict[_Expert, ReadJob] = {}
        self._leaving: dict[_Expert, ReadJob] = {}  # evicted experts, and the job that takes their pages
        self._predictor = ExpertPredictor()
        self._prefetched: list[ReadJob] = []
        self._ranked: list[tuple[float, int, int]] = []
        self._needed: tuple[int, frozenset[int]] = (0, frozenset())
        self._readers = Readers(READERS, self._arrived)
        for stacks in self._stacks:
            for stack in stacks:
                self._pages.drop(stack.span(0), stack.span(experts - 1))
        self._has_started = True
        self._readers.ahead(self._best())

    @property
    def problem(self) -> str:
        """Why the last step's result is invalid; empty if it is valid."""
        return str(self._failure) if self._failure is not None else ""

    def stats(self) -> ExpertStats:
        """Return the counts since the load."""
        counts = self._counts
        return ExpertStats(
            asked=counts.asked,
            there=counts.there,
            read_bytes=counts.read_bytes,
            waited_s=counts.waited_s,
            cached_bytes=self._used_bytes,
        )

    def use(self) -> ExpertUse:
        """Return the usage statistics, including earlier ones."""
        if not self._has_started:
            return ExpertUse()
        rows = zip(self._layers, self._score.tolist(), strict=True)
        return ExpertUse(tokens=self._tokens, layers=dict(rows), ranks=self._ranks.tolist())

    def close(self) -> None:
        """End the readers. Copies stay while the model is mapped."""
        if self._has_started:
            self._has_started = False
            self._readers.close()
            self._pages.close()
            self._parts.close()

    # ------------------------------------------------------------------ routing

    def _on_node(self, address: int, ask: bool, _data: Any) -> bool:
        """Callback of the scheduler: before a node, return whether to report it; after it, whether to continue."""
        if ask:
            return self._has_started and ctypes.string_at(address + _NAME_AT, len(_ROUTING)) == _ROUTING
        if self._failure is not None:
            return False
        try:
            self._routed(Tensor.from_address(address))
        except BaseException as error:  # noqa: BLE001 - must not cross into C; the step fails afterwards
            self._failure = error
        return self._failure is None

    def _routed(self, node: Tensor) -> None:
        row = self._rows.get(int(node.name[len(_ROUTING) :]))
        used, tokens = int(node.ne[0]), int(node.ne[1])
        if row is None or not used or not tokens:
            return
        if row == 0:
            self._parts.check()
        raw = ctypes.string_at(node.data, (tokens - 1) * node.nb[1] + 4 * used)
        ids = np.ndarray((tokens, used), np.int32, raw, strides=(node.nb[1], 4))
        experts, counts = np.unique(ids, return_counts=True)
        if experts[0] < 0 or experts[-1] >= self._there.shape[1]:
            raise ValueError(f"layer {row} asks for an expert that does not exist")
        self._note(row, experts, counts, tokens)
        self._ensure_loaded(row, experts)
        if row + 1 == len(self._stacks):
            return
        if tokens > _FEW_TOKENS:
            self._prefetch(row + 1, np.argsort(-self._score[row + 1]).tolist())
        elif self._counts.there < self._counts.asked and self._readers.idle:
            self._prefetch(row + 1, self._predictor.predict(row, node, used))

    def _note(self, row: int, experts: Any, counts: Any, tokens: int) -> None:
        """Count the requested experts; a prompt chunk counts as one token, because it reads each expert once."""
        few = tokens <= _FEW_TOKENS
        steps = tokens if few else 1
        self._noted += 1
        if few and self._tokens > _LEARNING_TOKENS and self._noted % _RANKED_EACH == 0:
            self._note_ranks(row, experts, counts, steps)
        fading = 0.5 ** (steps / HALF_LIFE_TOKENS)
        self._score[row] *= fading
        self._score[row, experts] += counts if few else counts / tokens
        if row == 0:
            self._tokens = self._tokens * fading + steps

    def _note_ranks(self, row: int, experts: Any, counts: Any, steps: int) -> None:
        """Record the ranks of the requested experts before they are counted; equal ones get the middle rank."""
        scores = self._score.ravel()
        mine = self._score[row, experts][:, None]
        ranks = (scores > mine).sum(axis=1) + (scores == mine).sum(axis=1) / 2
        self._ranks *= 0.5 ** (steps * _RANKED_EACH / len(self._stacks) / HALF_LIFE_TOKENS)
        np.add.at(self._ranks, (ranks * RANKS / scores.size).astype(int), counts)

    def _ensure_loaded(self, row: int, experts: Any) -> None:
        """Wait until the experts that a layer needs are in memory."""
        started_at = time.monotonic()
        self._needed = (row, frozenset(experts.tolist()))
        self._cancel_prefetches()
        missing = experts[~self._there[row, experts]].tolist()
        self._counts.asked += len(experts)
        self._counts.there += len(experts) - len(missing)
        if missing:
            # While a reader takes an expert's pages, they are zeros for a few microseconds.
            leaving = [self._leaving.get((row, expert)) for expert in missing]
            if any(leaving):
                self._readers.wait_for([job for job in leaving if job is not None])
            jobs = (self._coming.get((row, expert)) or self._absent_job((row, expert)) for expert in missing)
            self._readers.wait_for([job for job in jobs if job is not None])
            self._counts.waited_s += time.monotonic() - started_at

    def _prefetch(self, row: int, experts: Iterable[int]) -> None:
        """Read the probable experts of the next layer while this one is computed, in this order."""
        absent = (e for e in experts if (row, e) not in self._coming and (row, e) not in self._leaving)
        jobs = (self._absent_job((row, expert), prefetch=True) for expert in absent)
        self._prefetched = [job for job in jobs if job is not None]
        self._readers.ahead(self._prefetched)

    def _cancel_prefetches(self) -> None:
        """End the current prefetches: those requested now stay, the others are cancelled if not started."""
        row, experts = self._needed
        if not self._prefetched:
            return
        wanted_keys = {(row, expert) for expert in experts}
        for job in self._readers.cancel(lambda r: r.prefetch and r.expert not in wanted_keys):
            self._forget(job)
        started = [job.expert for job in self._prefetched if job.begun]
        self._predictor.note(len(started), sum(expert in wanted_keys for expert in started))
        self._prefetched = []

    def _forget(self, job: ReadJob) -> None:
        """Undo a cancelled job: its victim stays in memory."""
        del self._coming[job.expert]
        self._used_bytes -= self._sizes[job.expert[0]]
        if job.victim is not None:
            del self._leaving[job.victim]
            self._there[job.victim] = True
            self._used_bytes += self._sizes[job.victim[0]]

    # ------------------------------------------------------------------ cached experts

    def _absent_job(self, expert: _Expert, *, prefetch: bool = False) -> ReadJob | None:
        """Return a job for an expert that is neither in memory nor being read; None if it has just arrived.

        The order of the checks matters: a reader marks an expert as present before it removes its job.
        """
        return None if self._there[expert] else self._read_job(expert, prefetch=prefetch)

    def _read_job(self, expert: _Expert, *, prefetch: bool = False) -> ReadJob | None:
        """Return a job that reads an expert in place of a less used one; None if all others are needed more."""
        row, number = expert
        victim: _Expert | None = None
        while self._used_bytes + self._sizes[row] > self._capacity_bytes:
            victim = self._choose_victim(row if prefetch else -1)
            if victim is not None:
                self._there[victim] = False
                self._used_bytes -= self._sizes[victim[0]]
                break
            late = None if prefetch else self._readers.last_ahead()
            if late is None:
                return None  # the kernel reads it from the file
            self._forget(late)
        self._used_bytes += self._sizes[row]
        spans = [stack.span(number) for stack in self._stacks[row]]
        victims = [stack.span(victim[1]) for stack in self._stacks[victim[0]]] if victim is not None else []
        parts = [functools.partial(self._fill, *pair) for pair in zip_longest(spans, victims)]
        job = self._coming[expert] = ReadJob(expert, parts, prefetch=prefetch, victim=victim)
        if victim is not None:
            self._leaving[victim] = job
        return job

    def _fill(self, span: Span | None, victim: Span | None, room: int) -> None:
        """Run a part of a job, one matrix, on a reader's thread."""
        if span is None:
            assert victim is not None
            self._pages.give_back(victim)
            return
        try:
            self._pages.fill(room, span, victim)
        except NoPages:  # the kernel's limit of mappings: cache no more, the kernel reads the file
            self._capacity_bytes = min(self._capacity_bytes, self._used_bytes)
        self._counts.read_bytes += span.end - span.begin

    def _arrived(self, job: ReadJob) -> None:
        """Mark an expert as present. Called on a reader's thread."""
        self._there[job.expert] = True
        self._coming.pop(job.expert, None)
        if job.victim is not None:
            self._leaving.pop(job.victim, None)

    def _choose_victim(self, spared: int) -> _Expert | None:
        """Return the least used expert in memory, except those of layer `spared` and those in use; None if none."""
        row, experts = self._needed
        while True:
            fresh = not self._ranked
            if fresh:
                self._rank(spared)
            while self._ranked:
                score, layer, number = self._ranked.pop()
                in_work = layer == spared or (layer == row and number in experts)
                if self._there[layer, number] and self._score[layer, number] <= score and not in_work:
                    return layer, number
            if fresh:
                return None

    def _rank(self, spared: int) -> None:
        """Rank the least used experts that may be evicted, the least used last."""
        row, experts = self._needed
        score = np.where(self._there, self._score, np.inf)
        score[row, list(experts)] = np.inf
        if spared >= 0:
            score[spared] = np.inf
        flat = score.ravel()
        some = np.argpartition(flat, min(_RANKED, flat.size - 1))[:_RANKED]
        some = some[np.isfinite(flat[some])]
        ranked = some[np.argsort(-flat[some])].tolist()
        width = score.shape[1]
        self._ranked = [(float(flat[at]), at // width, at % width) for at in ranked]

    def _best(self) -> list[ReadJob]:
        """Return jobs for the most used experts of earlier use, most used first, as many as fit."""
        if not self._tokens:
            return []
        width = self._score.shape[1]
        jobs = []
        for at in np.argsort(-self._score, axis=None).tolist():
            row, number = divmod(at, width)
            if not self._score[row, number] or self._used_bytes + self._sizes[row] > self._capacity_bytes:
                break
            job = self._read_job((row, number))
            if job is not None:
                jobs.append(job)
        return jobs

    def _take(self, earlier: ExpertUse) -> None:
        for layer, counts in earlier.layers.items():
            row = self._rows.get(layer)
            if row is not None and len(counts) == self._score.shape[1]:
                self._score[row] = counts
                self._tokens = earlier.tokens
        if len(earlier.ranks) == RANKS:
            self._ranks[:] = earlier.ranks


# Predicts the next layer's experts by applying its router to this layer's router input.
# A layer adds little to the residual stream, so the next router mostly chooses the same experts from this layer's
# input. Source of the idea: Eliseev and Mazur 2023, Fast inference of mixture-of-experts language models with
# offloading, 2.3.

# Maximum number of nodes from a routing back to its logits.
_FAR: Final = 8
# Minimum hit rate of predictions; below it, there are none for this many layers.
_WORTH: Final = 0.5
_PAUSE_LAYERS: Final = 2000
# Approximate number of the newest predictions that count.
_REMEMBERED: Final = 64.0


@dataclass(slots=True)
class _Router:
    """One layer's router: its matrix (experts, width), the norm before it (width,), and the bias of scores."""

    matrix: Any
    norm: Any
    bias: Any


class ExpertPredictor:
    """Learns each layer's router when it is first computed. Holds views of the model's weights: free it first."""

    def __init__(self) -> None:
        self._routers: dict[int, _Router | None] = {}
        self._hits = self._read = 0.0
        self._pause = 0

    def predict(self, row: int, routing: Tensor, used: int) -> list[int]:
        """Return the probable experts of layer `row` + 1, most probable first; empty if they cannot be computed."""
        logits, biased = _logits(routing)
        if logits is None:
            self._routers[row] = None
            return []
        if row not in self._routers:
            self._routers[row] = _router(logits, biased)
        here, following = self._routers[row], self._routers.get(row + 1)
        if here is None or following is None or self._pause > 0:
            self._pause -= 1
            return []
        width, tokens = int(logits.src[1].contents.ne[0]), int(logits.src[1].contents.ne[1])
        hidden = _array(logits.src[1].contents, (tokens, width))
        if here.norm is not None and following.norm is not None:
            hidden = hidden * (following.norm / here.norm)
        scores = hidden @ following.matrix.T
        if following.bias is not None:
            scores = 1 / (1 + np.exp(-scores)) + following.bias
        best = np.argpartition(-scores, used - 1, axis=1)[:, :used]
        order = np.take_along_axis(scores, best, axis=1).ravel().argsort()[::-1]
        return list(dict.fromkeys(best.ravel()[order].tolist()))

    def note(self, read: int, hits: int) -> None:
        """Record that `hits` of the experts `read` for a prediction were requested."""
        fading = 1 - min(1.0, read / _REMEMBERED)
        self._read = self._read * fading + read
        self._hits = self._hits * fading + hits
        if self._read > _REMEMBERED / 2 and self._hits < _WORTH * self._read:
            self._pause, self._read, self._hits = _PAUSE_LAYERS, 0.0, 0.0


def _logits(routing: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the logits node of a routing's router, and the node that adds a bias to its scores, if any."""
    node, biased = routing, None
    for _ in range(_FAR):
        if not node.src[0]:
            return None, None
        node = node.src[0].contents
        if node.name.startswith(b"ffn_moe_probs_biased-"):
            biased = node
        if node.name.startswith(b"ffn_moe_logits-"):
            whole = node.src[0] and node.src[1] and node.src[0].contents.name.endswith(b"ffn_gate_inp.weight")
            return (node, biased) if whole else (None, None)
    return None, None


def _router(logits: Tensor, biased: Tensor | None) -> _Router | None:
    weights, read = logits.src[0].contents, logits.src[1].contents
    if weights.type != F32 or read.type != F32:
        return None
    matrix = _array(weights, (int(weights.ne[1]), int(weights.ne[0])))
    norm = bias = None
    scale = read.src[1].contents if read.src[1] else None
    if scale is not None and scale.name.endswith(b"norm.weight") and scale.type == F32:
        norm = _array(scale, (int(scale.ne[0]),))
        norm = norm if np.all(norm) else None
    if biased is not None and biased.src[1] and biased.src[1].contents.type == F32:
        bias = _array(biased.src[1].contents, (matrix.shape[0],))
    return _Router(matrix, norm, bias)


def _array(tensor: Tensor, shape: tuple[int, ...]) -> Any:
    """Return a view of the tensor's float32 values; its rows must be contiguous."""
    count = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(tensor.data)).reshape(shape)
