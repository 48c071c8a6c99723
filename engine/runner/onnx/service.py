"""The ONNX runner: one folder in this process, with its scheduler or its encoder."""

import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import psutil

from devices.msgspec_lock import learned
from engine.onnx.folder import OnnxFolder
from engine.runner import onnx_libraries as libraries
from engine.runner import protocol
from engine.runner.generation.grammar_mask import ConstraintCompiler
from engine.runner.onnx import model
from engine.runner.onnx.encoder import Encoder
from engine.runner.onnx.errors import LoadFailed
from engine.runner.onnx.full_graph_session import compiled_at, whole_session
from engine.runner.onnx.model import LoadedFolder
from engine.runner.onnx.providers import QNN, ProviderChoice, chosen_provider
from engine.runner.onnx.scheduler import Scheduler
from engine.runner.onnx.vocabulary import FolderVocabulary
from engine.runner.protocol import Channel, LoadSettings
from engine.runner.service import Prompt, RunnerService
from quantize.onnx.fixed_folder import FACTS, GRAPHS, FixedFacts
from quantize.onnx.static_shapes import MASKED


class OnnxRunner(RunnerService[FolderVocabulary]):
    """Serves one ONNX folder."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel, "onnx")
        self._scheduler: Scheduler | None = None
        self._encoder: Encoder | None = None

    def run(self) -> int:
        """Serve; return the exit code."""
        os.environ.update(libraries.QUIET)
        return super().run()

    def _cancel_now(self, request_id: int) -> None:
        """Stop a running session that serves only this request; its generator is then discarded."""
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
                    loaded: LoadedFolder = load(settings, folder, graphs, self._compiling)
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


# Loads a folder of fixed-shape graphs, on the CPU or on Qualcomm's NPU with cached compiled graphs.

# Chains fixed-shape graphs: prompt chunks, then one token per step, with a cache in the caller's memory.
# NPU graphs have no dynamic sizes: a prompt goes through `prefill` in chunks of one length, the last one padded and
# masked. The last token and all later ones go through `decode`. Keys and values are 8-bit codes.

_MAX_FACTS_BYTES: Final = 8 << 20


def read_facts(folder: Path) -> FixedFacts:
    """Return the folder's facts. Raises: LoadFailed."""
    try:
        with (folder / FACTS).open("rb") as file:
            facts = msgspec.json.decode(file.read(_MAX_FACTS_BYTES), type=learned(FixedFacts))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadFailed(f"{FACTS} cannot be read: {error}") from error
    sizes = (facts.piece, facts.past, facts.layers, facts.embd, facts.vocab, facts.kv_heads, facts.head_dim)
    if min(sizes) < 1 or max(sizes) > 1 << 24 or not 0 <= facts.begin < facts.vocab:
        raise LoadFailed(f"{FACTS} has impossible sizes {sizes}")
    return facts


class FixedDecoder:
    """One sequence. `sessions` are those of GRAPHS; `room` more tokens fit, and the first is the model's own."""

    def __init__(self, folder: Path, facts: FixedFacts, sessions: Sequence[Any]) -> None:
        """Raises: LoadFailed: a file is missing, or its size does not match the facts."""
        self._facts = f = facts
        self._sessions = dict(zip(GRAPHS, sessions, strict=True))
        self._names = {g: [o.name for o in s.get_outputs()] for g, s in self._sessions.items()}
        self._table = _mapped(folder / "embedding.bin", np.float16, (f.vocab, f.embd))
        first = _mapped(folder / "first.bin", np.uint8, (f.layers, 2, f.kv_heads * f.head_dim))
        self._cache: dict[str, Any] = {}
        for layer in range(f.layers):
            for at, which in enumerate(("key", "value")):
                name = f"past.{layer}.{which}"
                dims = (f.kv_heads, f.head_dim, f.past) if which == "key" else (f.kv_heads, f.past, f.head_dim)
                cells = np.full((1, *dims), f.scales[name].zero, np.uint8)
                codes = first[layer, at].reshape(f.kv_heads, f.head_dim)
                if which == "key":
                    cells[0, :, :, 0] = codes
                else:
                    cells[0, :, 0, :] = codes
                self._cache[name] = cells
        self.length = 1

    @property
    def room(self) -> int:
        """Number of tokens that still fit."""
        return self._facts.past - self.length

    def rewind(self, length: int) -> None:
        """Roll back to the first `length` tokens; the model's own first one always stays."""
        self.length = max(1, min(length, self.length))

    def read(self, ids: Sequence[int]) -> None:
        """Add tokens to the cache, at most `room`."""
        piece = self._facts.piece
        for at in range(0, len(ids), piece):
            self._run("prefill", ids[at : at + piece], piece)

    def step(self, token: int) -> Any:
        """Process one token; return the logits after it, (vocabulary,) float32."""
        return self._facts.scales["logits"].values(self._run("decode", [token], 1)["logits"][0, 0])

    def _run(self, graph: str, ids: Sequence[int], width: int) -> dict[str, Any]:
        f, n, past = self._facts, len(ids), self.length
        hidden = np.zeros((1, width, f.embd), np.float32)
        hidden[0, :n] = self._table[list(ids)]
        mask = np.full((width, f.past + width), MASKED, np.float32)
        mask[:, :past] = 0
        mask[:, f.past :] = np.triu(np.full((width, width), MASKED, np.float32), 1)
        feeds = {
            "hidden": f.scales["hidden"].codes(hidden),
            "mask": f.scales["mask"].codes(np.tile(mask, (f.group, 1))[None, None]),
            "positions": np.minimum(np.arange(past, past + width), f.past - 1).astype(np.int32),
            **self._cache,
        }
        outputs = dict(zip(self._names[graph], self._sessions[graph].run(self._names[graph], feeds), strict=True))
        for layer in range(f.layers):
            self._cache[f"past.{layer}.key"][..., past : past + n] = outputs[f"new.{layer}.key"][..., :n]
            self._cache[f"past.{layer}.value"][:, :, past : past + n] = outputs[f"new.{layer}.value"][:, :, :n]
        self.length += n
        return outputs


def _mapped(path: Path, kind: Any, shape: tuple[int, ...]) -> Any:
    """Return a file as an array of this shape. Raises: LoadFailed."""
    try:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(mapping, kind).reshape(shape)
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{path.name} is not what {FACTS} says: {error}") from error


class FixedGenerator:
    """A sequence with the scheduler's interface: append tokens, read the last logits, roll back."""

    def __init__(self, decoder: FixedDecoder, begin: int) -> None:
        self._decoder = decoder
        self._begin = begin
        self._tokens: list[int] = []
        self._row: Any = None

    def append_tokens(self, ids: Any) -> None:
        """Add tokens. The model's own first one is in the cache already. Raises: ValueError: they do not fit."""
        self._tokens += [int(i) for i in ids]
        fresh = self._tokens[self._decoder.length - self._before :]
        if len(fresh) > self._decoder.room:
            raise ValueError("the context is full")
        if not fresh:  # only the first token, whose logits are not stored
            self._row = self._decoder.step(self._begin)
            self._decoder.rewind(1)
            return
        self._decoder.read(fresh[:-1])
        self._row = self._decoder.step(fresh[-1])

    @property
    def _before(self) -> int:
        """Cells before the text's own tokens: one, unless the text starts with the model's first token."""
        return int(self._tokens[:1] != [self._begin])

    def get_logits(self) -> Any:
        """Return the logits after the last token, (1, 1, vocabulary)."""
        return self._row[None, None]

    def rewind_to(self, count: int) -> None:
        """Roll back to the first `count` tokens."""
        before, self._tokens = self._before, self._tokens[:count]
        self._decoder.rewind(count + before)

    def set_runtime_option(self, _name: str, _value: str) -> None:
        """Do nothing: a chunk is short and is not interrupted."""


@dataclass
class LoadedFixed(LoadedFolder):
    """A loaded folder of fixed graphs. Every sequence has a separate cache with the same two sessions."""

    facts: FixedFacts | None = None
    sessions: list[Any] = field(default_factory=list)

    def generator(self, max_length: int) -> Any:  # noqa: ARG002 - the graphs fix its cache's length
        """Return a sequence with a separate cache."""
        assert self.facts is not None
        return FixedGenerator(FixedDecoder(self.folder.path, self.facts, self.sessions), self.facts.begin)


def load(
    settings: LoadSettings,
    folder: OnnxFolder,
    _graphs: list[Any],
    compiling: Callable[[float], None] = lambda _: None,
) -> LoadedFixed:
    """Load the folder and sample one token from it. `compiling` gets the progress of a first compile, 0 to 1.

    Raises: LoadFailed.
    """
    facts = read_facts(folder.path)
    choice = chosen_provider(settings, folder)
    notes: list[str] = []
    try:
        ort = libraries.onnxruntime()
        sessions = [_session(ort, settings, folder, choice, name, notes, compiling) for name in GRAPHS]
    except LoadFailed:
        raise
    except Exception as error:
        raise LoadFailed(choice.explain(libraries.reason(error))) from error
    vocabulary = FolderVocabulary(folder.path / "tokenizer.json", list(folder.ends), folder.vocab)
    loaded = LoadedFixed(
        og=None,
        model=None,
        folder=folder,
        vocabulary=vocabulary,
        settings=settings,
        # One cell is for the model's first token, which may not be in the text.
        n_ctx=min(settings.n_ctx, facts.past - 1),
        n_params=int(folder.own.get("n_params") or 0),
        all_logits=False,
        provider=choice.name,
        notes=notes,
        facts=facts,
        sessions=sessions,
    )
    generator = loaded.generator(facts.past)
    generator.append_tokens([facts.begin, facts.begin])
    if not np.isfinite(generator.get_logits()).all():
        raise LoadFailed("its output is not a number; the weights are damaged")
    return loaded


def _session(
    ort: Any,
    settings: LoadSettings,
    folder: OnnxFolder,
    choice: ProviderChoice,
    name: str,
    notes: list[str],
    compiling: Callable[[float], None],
) -> Any:
    """Return one graph's session. An NPU must run the whole graph, and compiled graphs are cached."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.n_threads or 1
    if choice.adapter is None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    elif choice.name != QNN:
        raise LoadFailed(f"graphs of fixed shapes run on the CPU or on {QNN}, not on {choice.name}")
    cache = Path(settings.cache_dir).parent if settings.cache_dir is not None else None
    compiled = compiled_at(cache, (folder.own.get("key"), folder.path.name), choice, name)
    session, note = whole_session(
        ort,
        options,
        folder.path / f"{name}.onnx",
        choice,
        compiled=compiled,
        on_compile=lambda graph: compiling(GRAPHS.index(graph) / len(GRAPHS)),
    )
    notes += [note] if note else []
    return session
