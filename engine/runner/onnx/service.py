"""The ONNX runner: one folder in this process, its scheduler or its encoder."""

import os
import time

import psutil

from engine.runner import onnx_libraries as libraries
from engine.runner import protocol
from engine.runner.channel import Channel
from engine.runner.generation.grammar_mask import ConstraintCompiler
from engine.runner.onnx import fixed_load, model
from engine.runner.onnx.encoder import Encoder
from engine.runner.onnx.errors import LoadFailed
from engine.runner.onnx.model import LoadedFolder
from engine.runner.onnx.scheduler import Scheduler
from engine.runner.onnx.vocabulary import FolderVocabulary
from engine.runner.service import RunnerService
from engine.runner.tokenizer_threads import Prompt


class OnnxRunner(RunnerService[FolderVocabulary]):
    """Serves one ONNX folder."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel, "onnx")
        self._scheduler: Scheduler | None = None
        self._encoder: Encoder | None = None

    def run(self) -> int:
        """Serve; returns the exit code."""
        os.environ.update(libraries.QUIET)
        return super().run()

    def _cancel_now(self, request_id: int) -> None:
        """Stop a running session that only this request waits for; the generator is then thrown away."""
        if self._scheduler is not None:
            generator = self._scheduler.prefilling(request_id)
            if generator is not None:
                self._scheduler.cancel(request_id)
                generator.set_runtime_option("terminate_session", "1")

    def _load(self, settings: protocol.LoadSettings) -> bool:
        self._step_started = time.monotonic()
        self._channel.send(protocol.Progress(phase="weights", fraction=0.0))
        try:
            folder, graphs = model.read_checked(settings.path)
            self._channel.send(protocol.Progress(phase="weights", fraction=0.1))
            if folder.kind == "generate":
                if folder.own.get("fixed"):
                    loaded: LoadedFolder = fixed_load.load(settings, folder, graphs, self._compiling)
                else:
                    loaded = model.load(settings, folder, graphs)
                self._scheduler = Scheduler(loaded)
                vocabulary, facts = loaded.vocabulary, model.facts(loaded)
            else:
                self._encoder = Encoder(settings, folder, graphs)
                vocabulary, facts = self._encoder.vocabulary, self._encoder.facts()
        except LoadFailed as error:
            self._channel.send(protocol.Fault(code="load_failed", message=str(error), param="model"))
            return False
        finally:
            self._step_started = 0.0
        constraints = ConstraintCompiler(vocabulary)
        constraints.warm()
        self._take_texts(vocabulary, facts.n_ctx, constraints.compile)
        self._send_loaded(facts)
        return True

    def _compiling(self, fraction: float) -> None:
        self._channel.send(protocol.Progress(phase=protocol.COMPILING, fraction=fraction))

    def _serve(self) -> int:
        while True:
            busy = (self._scheduler is not None and self._scheduler.busy) or (
                self._encoder is not None and self._encoder.busy
            )
            while not busy or not self._inbox.empty():
                message = self._inbox.get()
                if isinstance(message, protocol.Shutdown):
                    return 0
                self._control(message)
                busy = True
            self._step_started = time.monotonic()
            try:
                if self._scheduler is not None:
                    self._send_outputs(self._scheduler.step())
                elif self._encoder is not None:
                    answer = self._encoder.step()
                    if answer is not None:
                        self._channel.send(answer)
            finally:
                self._step_started = 0.0

    def _control(self, message: protocol.ToRunner | Prompt) -> None:
        scheduler, encoder = self._scheduler, self._encoder
        if isinstance(message, protocol.StatsQuery):
            self._channel.send(self._stats(message.id))
        elif isinstance(message, Prompt) and scheduler is not None:
            self._submit(message, scheduler)
        elif isinstance(message, protocol.Submit) and isinstance(message.request.prompt, list) and scheduler:
            self._submit(Prompt(message, message.request.prompt), scheduler)
        elif isinstance(message, protocol.Embed) and encoder is not None:
            fault = encoder.add(message)
            if fault is not None:
                self._channel.send(fault)
        elif isinstance(message, protocol.Cancel):
            for worker in (scheduler, encoder):
                if worker is not None:
                    worker.cancel(message.id)
        elif isinstance(message, protocol.Credit) and scheduler is not None:
            scheduler.credit(message.id, message.count)
        else:
            self._refuse(message.message if isinstance(message, Prompt) else message)

    def _refuse(self, message: protocol.ToRunner) -> None:
        text = f"This runner does not answer {type(message).__name__} for this model."
        code = "not_supported"
        if isinstance(message, protocol.Submit):
            code, text = "invalid_request", "This model embeds or ranks text and generates none."
        self._channel.send(protocol.Fault(id=getattr(message, "id", None), code=code, message=text, param="model"))

    def _submit(self, prompt: Prompt, scheduler: Scheduler) -> None:
        message = prompt.message
        fault = scheduler.add(message.id, message.request, prompt.tokens or [], prompt.constraint)
        if fault is not None:
            self._channel.send(fault)

    def _stats(self, stats_id: int) -> protocol.Stats:
        s = self._scheduler
        used, total = s.cells if s else (0, 0)
        return protocol.Stats(
            id=stats_id,
            steps=s.steps if s else 0,
            prompt_tokens=s.prompt_tokens if s else 0,
            generated_tokens=s.generated_tokens if s else 0,
            cached_tokens=s.cached_tokens if s else 0,
            active=s.active if s else 0,
            waiting=s.waiting if s else 0,
            kv_cells_used=used,
            kv_cells_total=total,
            rss_bytes=psutil.Process().memory_info().rss,
            all_s=s.step_times.all_s if s else 0.0,
            own_s=dict(s.step_times.own_s) if s else {},
        )
