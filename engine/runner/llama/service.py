"""The llama.cpp runner: one model in this process, its scheduler, prefixes and images."""

import contextlib
import queue
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from devices.backends import openvino
from engine.core.startup_timing import StartupTimer
from engine.core.types import DeviceCheck, GenerationRequest, ModelFacts
from engine.runner import protocol
from engine.runner.engine_args import meaning
from engine.runner.generation.grammar_mask import ConstraintCompiler, TokenConstraint
from engine.runner.llama.batch.adapters import Adapters
from engine.runner.llama.batch.deterministic import ExactScheduler
from engine.runner.llama.batch.scheduler import Scheduler
from engine.runner.llama.cache.checkpoints import budget
from engine.runner.llama.cache.prefix_store import PrefixStore, model_fingerprint
from engine.runner.llama.native import model as llama_model
from engine.runner.llama.native.abort import AbortSwitch
from engine.runner.llama.native.batch import EngineBroken
from engine.runner.llama.native.device_check import (
    WRONG_KLD_MEAN,
    WRONG_KLD_MEAN_BFLOAT,
    DeviceWrong,
    NotComparable,
    Reference,
    prompts,
    read_reference,
)
from engine.runner.llama.native.device_verdict import checked
from engine.runner.llama.native.huge_pages import LargePages
from engine.runner.llama.native.llama_api import KernelsMissing, load_api, start_backends
from engine.runner.llama.native.rpc import NoWorker, add_workers
from engine.runner.llama.native.scenarios import Scenarios
from engine.runner.llama.native.self_check import SelfCheckFailed, self_check
from engine.runner.llama.native.vocabulary import LONGEST_TOKEN_BYTES, LlamaVocabulary
from engine.runner.llama.speculative.draft_model import DraftModel
from engine.runner.llama.speculative.model_drafter import ModelDrafter
from engine.runner.llama.speculative.mtp import MtpHead
from engine.runner.llama.vision.image import ImageRefused
from engine.runner.llama.vision.vision import Media, Vision
from engine.runner.protocol import Channel
from engine.runner.service import DutyCycle, Prompt, RunnerService, too_long
from engine.runner.text_limits import TooManyTokens

if TYPE_CHECKING:
    from engine.runner.llama.batch.embed import Embedder
    from engine.runner.llama.experts.load import StreamedExperts

# Requests of one program follow each other faster than this; after this pause, idle prefixes are copied to the
# store.
SETTLE_S: Final = 0.05
# Minimum pause between requests of a conversation; after it, its state is written to disk.
PERSIST_AFTER_S: Final = 1.0
# Interval of checks for messages while all requests wait for the server's decision about a larger context.
STALLED_S: Final = 0.002
# A prompt of this length takes long enough that the server needs progress reports.
DEPTH_REPORTED_FROM: Final = 4096


# Devices whose driver compiles the kernels, by the start of llama.cpp's names.
COMPILED_BY_DRIVER: Final = ("Vulkan", "OpenCL", "GPUOpenCL", "SYCL")


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


class LlamaRunner(RunnerService[LlamaVocabulary]):
    """Serves one GGUF model."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel, "llama.cpp")
        self._scheduler: Scheduler | None = None
        self._exact: ExactScheduler | None = None
        self._adapters: Adapters | None = None
        self._constraints: ConstraintCompiler | None = None
        self._store: PrefixStore | None = None
        self._experts: StreamedExperts | None = None
        self._abort: AbortSwitch | None = None
        self._loaded: llama_model.LoadedModel | None = None
        self._facts: ModelFacts | None = None
        self._embedder: Embedder | None = None
        self._depth_sent = 0
        self._duty_cycle = DutyCycle()
        self._pages = LargePages()
        self._vision: Vision | None = None
        self._vision_error = "this model reads text only: there is no projector (mmproj-*.gguf) next to it"

    def _cancel_now(self, request_id: int) -> None:
        if self._abort is not None and self._scheduler is not None and self._scheduler.only_prefilling(request_id):
            self._abort.pull()

    def _preempt_side_work(self) -> None:
        if self._abort is not None and self._scheduler is not None and self._scheduler.only_side_work:
            self._abort.pull()

    def _prefill_depth(self) -> int:
        return self._scheduler.prefill_depth if self._scheduler is not None else 0

    def _get_ready(self) -> None:
        """Load llama.cpp's libraries. No backend is started: that could wake a GPU that is not needed."""
        with contextlib.suppress(KernelsMissing):  # a load reports it
            load_api()

    def _send_check(self, settings: protocol.LoadSettings) -> None:
        self._channel.send(protocol.Progress(phase=check_phase(settings), fraction=1.0))

    def _load(self, settings: protocol.LoadSettings) -> bool:

        def on_progress(fraction: float) -> bool:
            self._channel.send(protocol.Progress(phase="weights", fraction=fraction))
            return True

        check: DeviceCheck | None = None
        try:
            compiled = Path(settings.cache_dir).parent / "openvino" if settings.cache_dir else None
            api = start_backends(settings.devices, compiled, settings.tiles, settings.variables)
            if settings.engine_args.rpc:
                add_workers(api, settings.engine_args.rpc)
            self._phases.done("backends")
            loaded, self._experts = self._pages.loading()(load)(api, settings, on_progress, self._phases)
            vocabulary = LlamaVocabulary(api, loaded.vocab)
            self._phases.done("vocabulary")
            self._send_check(settings)
            if settings.embeddings or api.llama_model_has_encoder(loaded.model):
                llama_model.warm_up(loaded)
            else:
                self_check(loaded, vocabulary)
                check = compared(loaded, vocabulary)
            self._phases.done("check")
            if settings.mmproj_path is not None:
                self._load_projector(loaded, settings.mmproj_path)
            self._store = prefix_store(api, loaded)
            draft_model = model_drafter(loaded, vocabulary)
            self._adapters = Adapters(loaded, settings.lora)
            self._scheduler = Scheduler(loaded, vocabulary, self._store, self._adapters, draft_model, self._vision)
        except DeviceWrong as error:
            numbers = msgspec.structs.asdict(error.found) if error.found else {}
            self._channel.send(
                protocol.Fault(code="device_check_failed", message=str(error), param="model", facts=numbers)
            )
            return False
        except (KernelsMissing, NoWorker, llama_model.LoadFailed, EngineBroken) as error:
            self._channel.send(protocol.Fault(code=_code_of(error), message=str(error), param="model"))
            return False
        self._loaded = loaded
        self._abort = AbortSwitch(api, loaded.context)
        facts = llama_model.facts(loaded, vocabulary.pieces, ",".join(settings.devices) or "cpu")
        if self._vision is not None:
            facts = msgspec.structs.replace(facts, capabilities=(*facts.capabilities, "vision"))
        longest = LONGEST_TOKEN_BYTES if vocabulary.spells else 0
        facts = msgspec.structs.replace(facts, longest_token_bytes=longest, device_check=check)
        self._facts = facts
        if settings.embeddings:
            embedder = _embedder(loaded, vocabulary, facts)
            if isinstance(embedder, str):
                self._channel.send(protocol.Fault(code="load_failed", message=embedder, param="model"))
                return False
            self._embedder, kind = embedder, "rerank" if embedder.ranks else "embedding"
            facts = msgspec.structs.replace(facts, n_ctx=embedder.limit, capabilities=(kind,))
        self._constraints = ConstraintCompiler(vocabulary)
        self._take_texts(vocabulary, loaded.max_ctx, self._constraints.compile)
        self._send_loaded(facts)
        return True

    def _load_projector(self, loaded: llama_model.LoadedModel, projector: str) -> None:
        """Load the projector. If it does not fit, perhaps because it is another model's, only text is served."""
        try:
            self._vision = Vision(loaded, projector)
        except llama_model.LoadFailed as error:
            self._vision_error = str(error)
            sys.stderr.write(f"{error}\n")

    def _serve(self) -> int:
        scheduler, abort = self._scheduler, self._abort
        assert scheduler is not None
        assert abort is not None
        while True:
            others = (self._exact, self._embedder)
            busy = scheduler.busy or any(other is not None and other.busy for other in others)
            message = self._duty_cycle.pause(self._inbox) if busy and self._inbox.empty() else self._wait(scheduler)
            started_at = time.monotonic()
            try:
                while message is not None:
                    if isinstance(message, protocol.Shutdown):
                        self._persist_prefixes(scheduler)
                        return 0
                    self._control(message, scheduler)
                    message = None if self._inbox.empty() else self._inbox.get()
                if self._duty_cycle.owed_s > 0 and busy:
                    continue
                abort.reset()
                self._step_started = started_at = time.monotonic()
                self._step(scheduler)
                if self._exact is not None:
                    self._send_outputs(self._exact.step())
                if self._embedder is not None and self._embedder.busy:
                    answer = self._embedder.step()
                    if answer is not None:
                        self._channel.send(answer)
            except EngineBroken as error:
                self._channel.send(protocol.Fault(code="engine_broken", message=str(error)))
                sys.stderr.write(f"{error}\n")  # the server reports the last line
                return 5
            finally:
                if self._step_started:
                    self._step_started = 0.0
                    self._duty_cycle.stepped(time.monotonic() - started_at)
            self._request_room(scheduler)

    def _step(self, scheduler: Scheduler) -> None:
        self._send_outputs(scheduler.step())
        for recorded in scheduler.recorder.take():
            self._channel.send(recorded)
        self._report_depth(scheduler.prefill_depth)

    def _report_depth(self, depth: int) -> None:
        """Tell the server how deep a long prompt is at each doubling, since a driver may end this process."""
        if depth >= max(DEPTH_REPORTED_FROM, 2 * self._depth_sent):
            self._depth_sent = depth
            self._channel.send(protocol.Heartbeat(step_s=0.0, depth=depth))
        elif not depth:
            self._depth_sent = 0

    def _request_room(self, scheduler: Scheduler) -> None:
        """Send requests for a larger context to the server; if nothing else runs, wait for its reply."""
        for worker in (scheduler, self._exact):
            if worker is not None:
                for request in worker.take_context_requests():
                    self._channel.send(request)
        if scheduler.stalled and self._inbox.empty():
            time.sleep(STALLED_S)

    def _wait(self, scheduler: Scheduler) -> protocol.ToRunner | Prompt:
        """Return the next message.

        Short pauses are used to prepare later requests, longer ones to write prefixes.
        """

        def settle() -> None:
            scheduler.on_idle(self._inbox.empty)

        for pause_s, use in ((SETTLE_S, settle), (PERSIST_AFTER_S, scheduler.kv.spilling.persist)):
            try:
                return self._inbox.get(timeout=pause_s)
            except queue.Empty:
                use()
            if self._constraints is not None:
                self._constraints.warm()
            if self._experts is not None:
                self._experts.on_idle()
            self._pages.collapse(self._inbox.empty)
        return self._inbox.get()

    def _persist_prefixes(self, scheduler: Scheduler) -> None:
        """Store computed prefixes, including those of running requests.

        The server waits while bytes are written.
        """

        def report(written_bytes: int, left_bytes: int, problem: str) -> None:
            saving = protocol.Saving(written_bytes=written_bytes, left_bytes=left_bytes, problem=problem)
            self._channel.send(saving)

        scheduler.end_all()
        if self._store is not None:
            self._store.wait_for_disk(report)
        scheduler.kv.spilling.persist()
        if self._store is not None:
            self._store.close()
        if self._experts is not None:
            self._experts.close()

    def _control(self, message: protocol.ToRunner | Prompt, scheduler: Scheduler) -> None:
        if isinstance(message, Prompt):
            self._submit(message.message, message.tokens, message.constraint, scheduler)
        elif isinstance(message, protocol.Submit):
            self._submit(message, None, None, scheduler)
        elif isinstance(message, protocol.Cancel):
            self._cancel(message.id, scheduler)
        elif isinstance(message, protocol.Embed):
            self._embed(message)
        elif isinstance(message, protocol.Credit):
            scheduler.credit(message.id, message.count)
            if self._exact is not None:
                self._exact.credit(message.id, message.count)
        elif isinstance(message, protocol.Resize):
            self._resize(message, scheduler)
        elif isinstance(message, protocol.StatsQuery | protocol.Pace | protocol.ContextKept):
            self._manage(message, scheduler)
        else:
            self._channel.send(
                protocol.Fault(
                    id=getattr(message, "id", None),
                    code="not_supported",
                    message=f"This runner does not answer {type(message).__name__} for this model.",
                )
            )

    def _cancel(self, request_id: int, scheduler: Scheduler) -> None:
        for worker in (scheduler, self._exact, self._embedder):
            if worker is not None:
                worker.cancel(request_id)

    def _manage(
        self, message: protocol.StatsQuery | protocol.Pace | protocol.ContextKept, scheduler: Scheduler
    ) -> None:
        if isinstance(message, protocol.StatsQuery):
            self._channel.send(self._stats(message.id, scheduler))
        elif isinstance(message, protocol.Pace):
            scheduler.pace.bound_threads(message.threads)
            self._duty_cycle.set(message.duty)
        else:
            scheduler.keep_context(message.id)
            if self._exact is not None:
                self._exact.keep_context(message.id)

    def _resize(self, message: protocol.Resize, scheduler: Scheduler) -> None:
        """Resize the context between two steps, then the context of deterministic requests.

        It counts as a step: a device that hangs is noticed.
        """
        assert self._loaded is not None
        assert self._abort is not None
        self._step_started = started_at = time.monotonic()
        try:
            moved, faults = scheduler.resize(message.n_ctx, message.kv_cells, through_disk=message.through_disk)
        except llama_model.LoadFailed as error:
            self._channel.send(protocol.Fault(id=message.id, code="resize_failed", message=_sentence(error)))
            return
        finally:
            self._abort.bind(self._loaded.context)
        if self._exact is not None:
            faults += self._exact.follow(self._loaded.settings, through_disk=message.through_disk)
        self._channel.send(
            protocol.Resized(
                id=message.id,
                n_ctx=self._loaded.n_ctx,
                kv_cells=self._loaded.kv_cells,
                reserved_cells=self._loaded.reserved_cells,
                state_bytes=moved.state_bytes,
                seconds=time.monotonic() - started_at,
            )
        )
        for fault in faults:
            self._channel.send(fault)

    def _submit(
        self,
        message: protocol.Submit,
        tokens: list[int] | None,
        constraint: TokenConstraint | None,
        scheduler: Scheduler,
    ) -> None:
        """Queue a request. `tokens` is None if the prompt consists of ids or contains images."""
        request = message.request
        assert self._loaded is not None
        if self._loaded.settings.embeddings:
            text = "This model embeds or ranks text and generates none."
            self._channel.send(protocol.Fault(id=message.id, code="invalid_request", message=text, param="model"))
            return
        media: Media | None = None
        if request.deterministic:
            outcome = self._for_exact(message.id, request)
            if isinstance(outcome, protocol.Fault):
                self._channel.send(outcome)
                return
            scheduler = outcome
        if request.images:
            try:
                tokens, media = self._encode_images(request)
            except TooManyTokens as error:
                self._channel.send(too_long(message.id, error.at_least, self._loaded.max_ctx))
                return
            except ImageRefused as error:
                fault = protocol.Fault(
                    id=message.id, code="invalid_request", message=_sentence(error), param="messages"
                )
                self._channel.send(fault)
                return
        elif tokens is None:
            assert isinstance(request.prompt, list)
            tokens = request.prompt
        refused = scheduler.add(message.id, request, tokens, media, constraint)
        if refused is not None:
            if media is not None:
                media.close()
            self._channel.send(refused)

    def _for_exact(self, request_id: int, request: GenerationRequest) -> ExactScheduler | protocol.Fault:
        """Return the scheduler of deterministic requests; its context is created with the first of them."""
        assert self._loaded is not None
        assert self._vocabulary is not None
        assert self._adapters is not None
        problem = "deterministic works with text only: images are computed in separate steps."
        if not request.images:
            if self._exact is not None and self._exact.n_ctx < self._loaded.n_ctx and not self._exact.busy:
                self._exact.close()  # it could not grow: perhaps there is memory by now
                self._exact = None
            try:
                if self._exact is None:
                    context = llama_model.exact_context(self._loaded)
                    self._exact = ExactScheduler(context, self._vocabulary, self._adapters)
            except llama_model.LoadFailed as error:
                problem = _sentence(error)
            else:
                return self._exact
        return protocol.Fault(id=request_id, code="invalid_request", message=problem, param="deterministic")

    def _encode_images(self, request: GenerationRequest) -> tuple[list[int], Media]:
        """Return the prompt's tokens, including its images. Raises: ImageRefused, TooManyTokens."""
        if self._vision is None:
            raise ImageRefused(self._vision_error)
        assert self._vocabulary is not None
        assert self._loaded is not None
        if isinstance(request.prompt, str):
            self._vocabulary.refuse_impossible(request.prompt, self._loaded.max_ctx)
        return self._vision.read(request)

    def _embed(self, message: protocol.Embed) -> None:
        assert self._loaded is not None
        assert self._vocabulary is not None
        assert self._facts is not None
        embedder = self._embedder or _embedder(self._loaded, self._vocabulary, self._facts)
        if isinstance(embedder, str):
            self._channel.send(protocol.Fault(id=message.id, code="not_supported", message=embedder))
            return
        self._embedder = embedder
        fault = embedder.add(message)
        if fault is not None:
            self._channel.send(fault)

    def _stats(self, stats_id: int, scheduler: Scheduler) -> protocol.Stats:
        import psutil

        both = [scheduler, *([self._exact] if self._exact is not None else [])]
        assert self._loaded is not None
        embeds_too = self._embedder is not None and not self._loaded.settings.embeddings
        stored = self._store.ram_bytes if self._store else 0
        return protocol.Stats(
            id=stats_id,
            steps=sum(s.steps for s in both),
            prompt_tokens=sum(s.prompt_tokens for s in both),
            generated_tokens=sum(s.generated_tokens for s in both),
            cached_tokens=sum(s.cached_tokens for s in both),
            computed_tokens=sum(s.computed_tokens for s in both),
            active=sum(s.active for s in both),
            waiting=sum(s.waiting for s in both),
            kv_cells_used=sum(s.kv.used_cells for s in both),
            kv_cells_total=sum(s.kv.cells for s in both),
            rss_bytes=psutil.Process().memory_info().rss,
            cache_ram_bytes=stored + sum(s.kv.checkpoint_bytes for s in both),
            cache_disk_bytes=self._store.disk_bytes if self._store else 0,
            all_s=sum(s.step_times.all_s for s in both),
            experts=self._experts.stats() if self._experts is not None else None,
            own_s={number: seconds for s in both for number, seconds in s.step_times.own_s.items()},
            num_contexts=len(both) + embeds_too,
        )


def _embedder(loaded: llama_model.LoadedModel, vocabulary: LlamaVocabulary, facts: ModelFacts) -> "Embedder | str":
    """Return the embedder of a model, or why it cannot embed."""
    from engine.runner.llama.batch.embed import CannotEmbed, Embedder  # a chat's first token needs none of it

    try:
        return Embedder(loaded, vocabulary, facts.metadata)
    except CannotEmbed as error:
        return str(error)


def _code_of(error: Exception) -> str:
    if isinstance(error, SelfCheckFailed):
        return "self_check_failed"
    return "file_refused" if isinstance(error, llama_model.FileRefused) else "load_failed"


# Parts of a load besides the weights: stored prefixes, the device check, the drafter, the experts.


def load(
    api: Any, settings: protocol.LoadSettings, on_progress: Callable[[float], bool], phases: StartupTimer
) -> "tuple[llama_model.LoadedModel, StreamedExperts | None]":
    """Load the model with its context, and its experts if they are streamed. Raises: LoadFailed."""
    if not settings.expert_bytes:
        return llama_model.load(api, settings, on_progress, phases), None
    from engine.runner.llama.experts.expert_cache import CannotStream
    from engine.runner.llama.experts.load import StreamedExperts

    try:
        experts = StreamedExperts(api, settings)
        loaded = llama_model.load(api, settings, on_progress, phases, on_node=experts.callback)
        experts.begin()
    except CannotStream as error:
        raise llama_model.LoadFailed(f"its experts cannot be streamed: {error}") from error
    loaded.problem = experts.problem
    phases.done("experts")
    return loaded, experts


def prefix_store(api: Any, loaded: llama_model.LoadedModel) -> PrefixStore:
    """Return the store for this model's prefixes: only states of the same file, cache types and build match."""
    settings = loaded.settings
    path = Path(settings.path)
    build = api.llama_version().decode()
    adapters = tuple(model_fingerprint(Path(adapter)) for adapter in settings.lora)
    shape: tuple[object, ...] = (settings.type_k, settings.type_v, settings.flash_attn, build, protocol.VERSION)
    shape += (*adapters, *meaning(settings.engine_args), settings.tiles, settings.repack)
    shape += (settings.num_faults,) if settings.num_faults else ()
    if settings.mmproj_path is not None:
        projector = Path(settings.mmproj_path).stat()
        shape += (settings.mmproj_path, projector.st_size, projector.st_mtime_ns)
    folder = Path(settings.cache_dir) if settings.cache_dir else None
    fingerprint = model_fingerprint(path, *shape)
    return PrefixStore(settings.cache_ram_bytes - budget(loaded), settings.cache_disk_bytes, folder, fingerprint)


def check_phase(settings: protocol.LoadSettings) -> str:
    """The phase of the first prompt, in which a driver may compile for minutes and then cache the result.

    OpenVINO compiles the graph, or takes it from its cache. The others compile shaders the first time with a
    driver; then the device is not compared with the CPU yet either.
    """
    is_first = settings.reference_path is not None
    shaders = any(device.startswith(COMPILED_BY_DRIVER) for device in settings.devices)
    return protocol.COMPILING if openvino.target_of(settings.devices) or (is_first and shaders) else "check"


def compared(loaded: llama_model.LoadedModel, vocabulary: LlamaVocabulary) -> DeviceCheck | None:
    """Return the comparison of the device with the CPU; None without a usable reference.

    Raises: DeviceWrong.
    """
    path = loaded.settings.reference_path
    expected = read_reference(Path(path)) if path else None
    if expected is None:
        return None
    # graphs are compiled as a whole; a single node would be another program
    compiled = bool(openvino.target_of(loaded.settings.devices))
    floor = WRONG_KLD_MEAN_BFLOAT if compiled else WRONG_KLD_MEAN
    try:
        check = checked(expected, loaded, vocabulary, floor, whole=compiled)
    except NotComparable as error:
        sys.stderr.write(f"the device was not compared with the CPU: {error}\n")
        return None
    if not compiled:
        omitted = compare_scenarios(expected, loaded, vocabulary, check)
        check = msgspec.structs.replace(check, omitted=", ".join(omitted))
    return check


def compare_scenarios(
    expected: Reference, loaded: llama_model.LoadedModel, vocabulary: LlamaVocabulary, check: DeviceCheck
) -> list[str]:
    """Compute several sequences and long prompts as the server does; return what was not compared with the CPU.

    Raises: DeviceWrong.
    """
    name = ", ".join(loaded.settings.devices) or "the CPU"
    tokens = [token for sequence in prompts(loaded, vocabulary) for token in sequence]
    try:
        done, omitted, wrong = Scenarios(loaded, expected, tokens).run()
    except ValueError as error:
        raise DeviceWrong(f"on {name}, {error}", check) from error
    if wrong is not None:
        reason = f"{name} computes {wrong.scenario} wrongly ({wrong.nats:.2g} nats)"
        raise DeviceWrong(reason, check)
    sys.stderr.write(f"{name} computed like each text alone: {', '.join(done) or 'nothing'}\n")
    if omitted:
        sys.stderr.write(f"compared while no model runs: {', '.join(omitted)}\n")
    return omitted


def model_drafter(loaded: llama_model.LoadedModel, vocabulary: LlamaVocabulary) -> ModelDrafter | None:
    """Return the drafter: the configured draft model, else the model's own MTP head if it is usable, else None."""
    settings = loaded.settings
    if settings.draft_path:
        return DraftModel.load(loaded.api, settings, vocabulary)
    if settings.mtp:
        try:
            return MtpHead(loaded)
        except llama_model.LoadFailed as error:
            sys.stderr.write(f"the model's own head is not used: {error}\n")
    return None
