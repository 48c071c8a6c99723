"""The scheduler: every step decodes one batch for all sequences, generating ones first, then prompt chunks."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from engine.core.types import GenerationRequest
from engine.runner.generation.grammar_mask import TokenConstraint
from engine.runner.generation.scheduler import (
    BaseScheduler,
    ConstraintFailed,
    Output,
    SamplingFailed,
    answer_limit,
    context_exceeded,
    must_wait,
    next_in_line,
    sample,
    to_preempt,
)
from engine.runner.llama.batch import admission, sampler
from engine.runner.llama.batch.adapters import Adapters
from engine.runner.llama.batch.inflight_prefix import InflightPrefixes
from engine.runner.llama.batch.step_budget import StepBudget, flush_text, prefill_order, usable_prefix
from engine.runner.llama.cache.cells import CachedSequence
from engine.runner.llama.cache.kv import KVCache
from engine.runner.llama.cache.kv_offload import SAVED_FROM
from engine.runner.llama.cache.prefix_store import PrefixStore
from engine.runner.llama.cache.resize import Moved, resize
from engine.runner.llama.native.batch import ABORTED, NO_ROOM, REFUSED, Batch, EngineBroken, Logits
from engine.runner.llama.native.model import LoadedModel, LoadFailed, padded
from engine.runner.llama.native.row_check import RowRecorder
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.sequence import (
    LlamaSequence,
    begun_for_watchers,
    is_full,
    prefill_progress,
    shift,
    waits_for_choice,
)
from engine.runner.llama.speculative.model_drafter import ModelDrafter
from engine.runner.llama.speculative.speculation import Speculation
from engine.runner.llama.vision.vision import Media, Span, Vision
from engine.runner.load_limits import STEADY_ROWS
from engine.runner.protocol import ContextWanted, Fault

# After this wait for cells of others a request asks for a larger context: a cache on a GPU must then be copied.
CELLS_AFTER_S: Final = 1.0


@dataclass(frozen=True)
class Parked:
    """A request whose prompt waits for a larger context."""

    request: GenerationRequest
    tokens: list[int]
    media: Media | None
    constraint: TokenConstraint | None


class Scheduler(BaseScheduler[LlamaSequence]):
    """Owns the context. `step` runs the engine; all other methods prepare it or report its state."""

    def __init__(
        self,
        loaded: LoadedModel,
        vocabulary: LlamaVocabulary,
        store: PrefixStore,
        adapters: Adapters,
        draft_model: ModelDrafter | None = None,
        vision: Vision | None = None,
        *,
        fixed: bool = False,
    ) -> None:
        super().__init__(vocabulary)
        self._loaded = loaded
        self._vision = vision
        self._kv = KVCache(loaded, store)
        self._quarantine = Quarantine(self._kv)
        self._batch = Batch(loaded)
        self._logits = Logits(loaded)
        self._running: list[LlamaSequence] = []
        self._prefilling: list[LlamaSequence] = []
        self.pace = StepBudget(loaded, fixed=fixed)
        self._speculation = Speculation(loaded, self.pace.cost, draft_model)
        self._following = InflightPrefixes(loaded, self._kv, self.pace)
        self._adapters = adapters
        self._parked: dict[int, Parked] = {}
        self._context_requests: list[ContextWanted] = []
        # The running requests have filled the cells: no other starts until one of them ends.
        self._crowded = False
        # Tokens computed of the longest prompt being read.
        self.prefill_depth = 0
        self.recorder = RowRecorder(loaded, 0 if fixed else loaded.settings.recorded_rows)
        self._can_be_steady = self._kv.truncatable and not loaded.settings.n_gpu_layers

    def on_idle(self, quiet: Callable[[], bool]) -> None:
        """Do work in advance for the next requests, while no request runs and `quiet` returns True."""
        self._settle(quiet)
        self._kv.spilling.spill_idle(quick=True)

    def _settle(self, quiet: Callable[[], bool]) -> None:
        """Compute a response again in steady steps, as the next request of its chat would have to."""
        cache = self._kv.unsettled()
        if cache is None or cache.unsettled is None:
            return
        adapters, cache.unsettled = cache.unsettled, None
        tokens = cache.tokens[cache.num_steady :]
        if len(tokens) < STEADY_ROWS or min(tokens) < 0:
            return
        self._adapters.activate(adapters)
        self._kv.truncate(cache, cache.num_steady)
        for start in range(0, len(tokens) - STEADY_ROWS + 1, STEADY_ROWS):
            rows = tokens[start : start + STEADY_ROWS]
            self._batch.clear()
            self._batch.add_prompt(rows, len(cache.tokens), cache.seq_id, last=False)
            self.pace.set_threads(STEADY_ROWS, steady=True)
            code = self._batch.decode() if quiet() else NO_ROOM
            if code == ABORTED:  # a request arrived
                self._kv.commit(cache, rows, aborted=True)
                self._kv.truncate(cache, cache.num_steady, or_empty=True)
            if code != 0:
                return
            self._kv.commit(cache, rows, alone=True, steady=True)

    @property
    def active(self) -> int:
        """Number of sequences that use cells."""
        return len(self._running)

    @property
    def kv(self) -> KVCache:
        return self._kv

    def add(
        self,
        request_id: int,
        request: GenerationRequest,
        tokens: list[int],
        media: Media | None = None,
        constraint: TokenConstraint | None = None,
    ) -> Fault | None:
        """Queue a tokenized request; return a Fault if it cannot run. If the context may grow for it, it waits."""
        n_ctx, size = self._loaded.n_ctx, self._vocabulary.size
        if n_ctx <= len(tokens) < self._loaded.max_ctx:
            self._parked[request_id] = Parked(request, tokens, media, constraint)
            self._context_requests.append(ContextWanted(id=request_id, tokens=len(tokens) + 1))
            return None
        if (fault := admission.refusal(request_id, request, tokens, n_ctx, size, self._adapters)) is not None:
            return fault
        sequence = admission.new_sequence(self._loaded, request_id, request, tokens, constraint, media)
        self._enqueue(sequence)
        return None

    def cancel(self, request_id: int) -> None:
        """Mark a request as cancelled; it ends before the next step."""
        super().cancel(request_id)
        self._drop_parked(request_id)

    def _drop_parked(self, request_id: int) -> None:
        parked = self._parked.pop(request_id, None)
        if parked is not None and parked.media is not None:
            parked.media.close()

    def _request_room_early(self) -> None:
        for sequence in self._running:
            if sequence.lacks_room():
                sequence.asked = True
                self._context_requests.append(ContextWanted(id=sequence.id, tokens=sequence.limit + 1, begun=True))

    def _request_cells(self, sequence: LlamaSequence) -> None:
        """Request more cells if this request has waited for those of others for some time."""
        if not sequence.wants_cells and time.monotonic() - sequence.times.submitted > CELLS_AFTER_S:
            sequence.wants_cells = True
            if (request := admission.more_cells(self._loaded, sequence.id)) is not None:
                self._context_requests.append(request)

    def take_context_requests(self) -> list[ContextWanted]:
        """Return the context requests since the last call."""
        requests, self._context_requests = self._context_requests, []
        return requests

    @property
    def stalled(self) -> bool:
        """Whether all running requests wait for a larger context."""
        return bool(self._running) and all(s.waits_for_room for s in self._running) and not self._waiting

    def resize(self, n_ctx: int, kv_cells: int, *, through_disk: bool = False) -> tuple[Moved, list[Fault]]:
        """Resize the context and queue the requests that waited for it. Returns Faults of those that cannot run.

        Raises: LoadFailed: nothing has changed. EngineBroken.
        """
        if padded(max(n_ctx, kv_cells)) < self._kv.cells:
            if self.busy:
                raise LoadFailed("the context becomes smaller only while nothing runs")
            self._kv.clear()
        self._speculation.detach()
        try:
            moved = resize(self._loaded, n_ctx, kv_cells, through_disk=through_disk)
        except LoadFailed:
            self._rebind()
            raise
        self._rebind()
        self._crowded = False
        for sequence in self._by_id.values():
            if not sequence.request.context_shift:
                sequence.limit = answer_limit(sequence.request, sequence.n_prompt, self._loaded.n_ctx)
            sequence.most = max(sequence.most, sequence.limit)
            sequence.asked = sequence.wants_cells = False
        fitting = {i: p for i, p in self._parked.items() if len(p.tokens) < self._loaded.n_ctx}
        faults = []
        for request_id, parked in fitting.items():
            del self._parked[request_id]
            fault = self.add(request_id, parked.request, parked.tokens, parked.media, parked.constraint)
            if fault is not None:
                faults.append(fault)
                if parked.media is not None:
                    parked.media.close()
        return moved, faults

    def _rebind(self) -> None:
        """Restore all settings of a new context."""
        self.pace.rebind()
        self._adapters.rebind()
        self._kv.moved()
        self._speculation.attach(self._loaded.n_ctx)

    def refuse_parked(self) -> list[Fault]:
        """Return Faults of all requests that wait for a larger context, because it will not grow."""
        parked, self._parked = self._parked, {}
        for one in parked.values():
            if one.media is not None:
                one.media.close()
        faults = (context_exceeded(i, len(p.tokens), self._loaded.n_ctx) for i, p in parked.items())
        return [fault for fault in faults if fault is not None]

    def keep_context(self, request_id: int) -> None:
        """Refuse to grow the context for this request: drop it if it cannot run, else let it end at the limit."""
        self._drop_parked(request_id)
        sequence = self._by_id.get(request_id)
        if sequence is not None and sequence.asked:
            sequence.most = sequence.limit

    def only_prefilling(self, request_id: int) -> bool:
        """Whether this request runs alone and is in prefill, so that an abort affects no other request."""
        return len(self._running) == 1 and self._running[0].id == request_id and not self._running[0].decoding

    @property
    def only_side_work(self) -> bool:
        """Whether only "side" requests run, so that the decode may be aborted; computed tokens stay."""
        return all(s.request.priority == "side" for s in self._running)

    def step(self) -> list[Output]:
        """Admit, decode one batch, sample; return the output to send to the server."""
        out: list[Output] = []
        self.prefill_depth = 0
        self._end_cancelled(out)
        for sequence in [s for s in self._by_id.values() if len(s.tokens) >= s.limit and s.over and s.n_generated]:
            self._end(sequence, "length", out)  # it waited for a larger context, which was refused
        if (self._waiting or len(self._running) > 1) and not self._quarantine.open:
            for sequence in to_preempt(self._running, self._waiting, self._loaded.settings.n_parallel):
                self._set_aside(sequence)
        self._admit(out)
        if not self._running or begun_for_watchers(out, self._running):
            return out
        started_at = time.monotonic()
        self._fill_batch(out)
        if self._batch.size == 0:
            return out
        self.pace.set_threads(self._batch.size, steady=self._running[0].steady)
        started, cpu = time.monotonic(), time.process_time()
        code = self._batch.decode() if self._kv.has_cells(self._batch.size) else NO_ROOM
        now, cpu = time.monotonic(), time.process_time() - cpu
        if code == 0:
            self.steps += 1
            self.computed_tokens += self._batch.size
            self.pace.note(self._batch.size, self._batch.outputs, now - started, cpu, now)
            self._commit_batch(now - started)
            if self._prefilling:
                self._save_long_prompts()
                self.cached_tokens += self._following.step_done(self._running)
                out.extend(prefill_progress(self._running, now, busy=self.pace.is_starved))
            self._sample(out)
            self._request_room_early()
            self._speculation.follow(self._batch, self._running)
            if self._batch.size == self._batch.outputs:
                self._speculation.update_balances(now - started_at)
        else:
            self._recover(code, out)
        out.extend(flush_text(self._by_id.values(), self._running))
        return out

    def _admit(self, out: list[Output]) -> None:
        if self._quarantine.open:
            if not self._running and (suspect := self._quarantine.examine()) is not None:
                self._start(*suspect, out)
            return
        if self._crowded and self._running:
            if self._waiting:
                self._request_cells(next_in_line(self._waiting, self._running))
            return
        self._crowded = False
        while self._waiting and len(self._running) < self._loaded.settings.n_parallel:
            sequence = next_in_line(self._waiting, self._running)
            if must_wait(sequence, self._running) or waits_for_choice(sequence, self._running, self._waiting):
                return
            source, shared = self._kv.sharing.best(sequence.shareable, sequence.key)
            free = self._kv.cells - self._kv.used_cells + self._kv.idle_cells
            if source is not None and not source.in_use:  # its idle cells are continued, so they become used
                free -= max(0, shared - source.shared)
            promised = admission.cells_promised(self._running)
            if self._running and admission.cells_needed(sequence) - shared > free - promised:
                self._request_cells(sequence)
                return
            if (cache := self._cells_for(sequence)) is None:
                return
            self._start(sequence, cache, out)

    def _cells_for(self, sequence: LlamaSequence) -> CachedSequence | None:
        """Return a sequence with the computed part of a request; None if all are in use."""
        if self._can_be_steady and sequence.repeatable and not self._running:
            cache = self._kv.acquire_steady(sequence.shareable, sequence.key)
            if cache is not None:
                sequence.steady = True
                return cache
        cache = self._kv.acquire(sequence.shareable, sequence.key)
        if cache is not None:
            shared = usable = len(cache.tokens)
            if sequence.media is not None:  # an image is shared completely or not at all
                usable = sequence.media.whole(shared)
            elif self._loaded.keeps_partial:
                usable = usable_prefix(self._loaded.settings, shared, len(sequence.tokens))
            if usable < shared:
                self._kv.truncate(cache, usable, or_empty=sequence.media is not None)
        return cache

    def _start(self, sequence: LlamaSequence, cache: CachedSequence, out: list[Output]) -> None:
        self._waiting.remove(sequence)
        sequence.cache, sequence.saved, sequence.wants_cells = cache, len(cache.tokens), False
        if not sequence.announced:
            self._admitted(sequence, len(cache.tokens), out)
        self._following.join(sequence, self._running)
        self._running.append(sequence)
        for one in self._running if len(self._running) > 1 else ():
            one.unsteady()

    def _fill_batch(self, out: list[Output]) -> None:
        batch = self._batch
        batch.clear()
        for sequence in self._running:
            sequence.row, sequence.scored, sequence.draft = -1, 0, []  # left by a failed step
            if is_full(sequence, self._loaded.n_ctx):
                shift(sequence, self._kv, self._loaded.n_ctx)
        members = self._adapters.members(self._running)
        generating = [s for s in members if s.decoding and not s.waits_for_room]
        self._prefilling = [s for s in members if not s.decoding]
        self._speculation.begin(len(generating), alone=len(members) == 1)
        for sequence in generating:
            assert sequence.cache is not None
            position = sequence.position(len(sequence.tokens) - 1)
            sequence.row = batch.add(sequence.tokens[-1], position, sequence.cache.seq_id)
            self._speculation.extend(batch, sequence)
        if self._prefilling:
            self._fill_prompts(out)

    def _fill_prompts(self, out: list[Output]) -> None:
        batch, prefilling = self._batch, self._prefilling
        depth = max((len(s.cache.tokens) for s in prefilling if s.cache is not None), default=0)
        self.prefill_depth = depth
        budget = self.pace.prefill_budget(batch.size, len(prefilling), depth)
        prefilled: list[LlamaSequence] = []
        for sequence in prefill_order(prefilling):
            assert sequence.cache is not None
            take = sequence.cache.until_checkpoint(min(sequence.n_missing, budget, batch.room))
            if take <= 0 or self._following.waits(sequence, prefilled):
                continue
            start = len(sequence.cache.tokens)
            if sequence.steady:
                take = min(take, sequence.until_steady(start))
            if sequence.media is not None:
                span = sequence.media.at(start)
                if span is not None:
                    self._put_image(sequence, sequence.cache, span, out)
                    budget -= span.n_tokens
                    continue
                take = min(take, sequence.media.text_until(start, len(sequence.tokens)) - start)
            budget -= take
            if sampler.put(batch, sequence, start, take, len(prefilling)):
                continue
            tokens, position = sequence.tokens[start : start + take], sequence.position(start)
            last = take == sequence.n_missing
            prefilled.append(sequence)
            sequence.row = batch.add_prompt(tokens, position, sequence.cache.seq_id, last=last)

    def _put_image(self, sequence: LlamaSequence, cache: CachedSequence, span: Span, out: list[Output]) -> None:
        """Encode one image into the cache, outside the batch."""
        assert self._vision is not None
        room = self._kv.make_room(span.n_tokens)
        code = self._vision.put(span, sequence.position(span.start), cache.seq_id) if room else NO_ROOM
        if code == 0:
            cache.tokens.extend(sequence.tokens[span.start : span.end])
            if sequence.steady:
                cache.num_steady = len(cache.tokens)
            return
        self._kv.truncate(cache, 0)  # the image's tokens so far are useless without the rest
        if code == NO_ROOM and len(self._running) > 1:
            self._preempt(sequence)
        elif code == NO_ROOM:
            self._fail(sequence, "cache_full", "The KV cache is too small for this image.", out)
        elif code != ABORTED:
            self._fail(sequence, "internal", "The image could not be encoded.", out)

    def _save_long_prompts(self) -> None:
        """Write the states of long prompts being read to disk whenever their length has doubled.

        If a driver ends this process, the next one continues from there. Large states are written only while no
        answer waits.
        """
        prefilling = [s for s in self._running if not s.n_generated]
        for sequence in prefilling:
            if sequence.cache is None or not sequence.request.cache_prompt:
                continue
            length = len(sequence.cache.tokens)
            if length < max(SAVED_FROM, 2 * sequence.saved):
                continue
            if len(prefilling) == len(self._running) or self._kv.spilling.is_quick(sequence.cache):
                sequence.saved = length
                self._kv.spilling.save(sequence.cache)

    def _commit_batch(self, seconds: float) -> None:
        owners = {s.cache.seq_id: (s, s.cache) for s in self._running if s.cache is not None}
        runs = self._batch.runs()
        for seq_id, tokens in runs:
            owner, cache = owners[seq_id]
            self._kv.commit(cache, tokens, alone=len(runs) == 1, steady=owner.steady)
        self.step_times.step(seconds, [(owners[seq_id][0], len(tokens)) for seq_id, tokens in runs])

    def _sample(self, out: list[Output]) -> None:
        rows, now, is_test = None, 0.0, self._quarantine.open
        not_finite: list[LlamaSequence] = []
        for sequence in list(self._running):
            if sequence.row < 0:
                continue
            if rows is None:
                rows = self._logits.rows(self._batch.outputs)
                now = time.monotonic()
            if sequence.scored and not sampler.note(sequence, rows, self._vocabulary.pieces):
                continue
            if len(sequence.tokens) >= sequence.limit:  # nothing was to be generated
                self._end(sequence, "length", out)
            elif not self._sample_sequence(sequence, rows, now, out):
                not_finite.append(sequence)
            elif is_test:
                self._quarantine.clear(sequence)
                if sequence.cache is not None and self._quarantine.open:
                    self._set_aside(sequence)
        if not_finite:
            self._isolate(not_finite, out)

    def _isolate(self, not_finite: list[LlamaSequence], out: list[Output]) -> None:
        offending = self._quarantine.isolate(not_finite)
        for sequence in reversed(self._running.copy()):
            self._preempt(sequence)
        for sequence in offending:
            self.recorder.record_undefined(sequence)
            self._fail(sequence, "not_finite", "The model's output is not a number.", out)
        self._kv.spilling.clear_cells()

    def _sample_sequence(self, sequence: LlamaSequence, rows: Any, now: float, out: list[Output]) -> bool:
        """Sample from the sequence's rows as long as tokens match the draft; False: the logits are not finite."""
        first, sequence.row = sequence.row, -1
        draft, sequence.draft = sequence.draft, []
        before, finite = len(sequence.tokens), True
        for i in range(len(draft) + 1):
            self.recorder.see(sequence, rows[first + i], self._batch)
            try:
                token, logprob = sample(sequence, rows[first + i], self._vocabulary)
            except ConstraintFailed as error:
                self._stop_unfinished(sequence, str(error), out)
                break
            except SamplingFailed:
                finite = False
                break
            self._take(sequence, token, logprob, now, out)
            if sequence.id not in self._by_id or i == len(draft) or token != draft[i]:
                break
        new = sequence.tokens[before:]
        if draft:
            self._speculation.record(sequence, max(len(new) - 1, 0))
        sequence.drafter.observe(new)
        if draft and sequence.cache is not None:
            # Rejected tokens leave the cache; all but the newest token stay computed.
            self._kv.truncate(sequence.cache, len(sequence.tokens) - 1, or_empty=True)
        return finite

    def _forget(self, sequence: LlamaSequence) -> None:
        del self._by_id[sequence.id]
        self.recorder.end(sequence, self.step_times.all_s)
        self._crowded = False
        self._quarantine.clear(sequence)
        if sequence.cache is not None:
            self.cached_tokens += self._following.leave(sequence, self._running)
            self._kv.truncate(sequence.cache, self._cacheable(sequence), or_empty=True)
            keep = sequence.request.priority != "background"
            unsettled = sequence.request.lora if sequence.steady and not sequence.shifted else None
            self._kv.release(sequence.cache, keep=keep, unsettled=unsettled)
            sequence.cache = None
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.close()

    def _cacheable(self, sequence: LlamaSequence) -> int:
        """Return how many tokens of an ending request stay in the cache as an idle prefix."""
        return 0 if sequence.shifted or not sequence.request.cache_prompt else len(sequence.tokens) - 1

    def _recover(self, code: int, out: list[Output]) -> None:
        if code == NO_ROOM:  # the cache is unchanged
            free = self._kv.cells - self._kv.used_cells
            # evicts at least one prefix, even if the count is wrong
            if self._kv.make_room(max(self._batch.size, free + 1)):
                return
            if len(self._running) > 1:
                self._set_aside(self._running[-1])  # the store holds its computed part until it runs again
                self._crowded = True  # otherwise it would be admitted again at once, before others use its cells
                self._kv.make_room(self._batch.size)
                return
            self._fail(self._running[0], "cache_full", "The KV cache is too small for this request.", out)
        elif code == ABORTED:  # aborted by a cancellation: computed tokens stay
            for sequence in self._running:
                assert sequence.cache is not None
                if sequence.shifted:  # its positions do not match its tokens
                    self._kv.truncate(sequence.cache, 0)
                else:
                    self._kv.commit(sequence.cache, sequence.tokens[len(sequence.cache.tokens) :], aborted=True)
        elif code == REFUSED:  # a bug in Tessera, but it affects only these requests
            for sequence in list(self._running):
                self._fail(sequence, "internal", "llama.cpp refused the batch.", out)
        else:
            raise EngineBroken(f"llama_decode returned {code}")

    def _preempt(self, sequence: LlamaSequence) -> None:
        """Take the cells of a running request; it goes to the head of the queue and is computed again later."""
        assert sequence.cache is not None
        self._kv.truncate(sequence.cache, 0)
        self._set_aside(sequence)

    def _set_aside(self, sequence: LlamaSequence) -> None:
        """Requeue a request; its cells stay as an idle prefix if others can use them."""
        assert sequence.cache is not None
        if sequence.shifted:
            self._kv.truncate(sequence.cache, 0)
        self._kv.release(sequence.cache)
        sequence.cache = None
        sequence.row = -1
        self._running.remove(sequence)
        self._waiting.appendleft(sequence)  # before all others of its priority and owner


# Isolates requests with non-finite logits, so that only the request that causes them fails.
# A NaN in one cell reaches all sequences of its cache (kernels compute a masked value as 0 times NaN). So the cache
# is wiped, and requests that showed NaN run again one by one, without a stored prefix: the next NaN is the cause.


class Quarantine:
    """The suspected requests, in the order in which they are tested."""

    def __init__(self, kv: KVCache) -> None:
        self._kv = kv
        self._suspects: list[LlamaSequence] = []

    @property
    def open(self) -> bool:
        """Whether there are suspects: only they may run then."""
        return bool(self._suspects)

    def isolate(self, not_finite: list[LlamaSequence]) -> list[LlamaSequence]:
        """Return the sequences that cause non-finite logits; the others become suspects or are cleared.

        The caller must release all sequences from the cache before the next decode.
        """
        offending = [s for s in not_finite if s in self._suspects]
        self._suspects = [s for s in self._suspects if s not in offending]
        self._suspects += [s for s in not_finite if s not in offending]
        return offending

    def examine(self) -> tuple[LlamaSequence, CachedSequence] | None:
        """Return the next suspect and an empty sequence of the cache to run it alone; None if none is free."""
        sequence = self._suspects[0]
        self._kv.spilling.forget(sequence.tokens, sequence.key)
        cache = self._kv.acquire([], sequence.key)
        return None if cache is None else (sequence, cache)

    def clear(self, sequence: LlamaSequence) -> None:
        """Clear a request that gave finite logits or ended."""
        if sequence in self._suspects:
            self._suspects.remove(sequence)
