"""Load a folder of fixed-shape graphs, on the CPU or on Qualcomm's NPU with its compiled graphs kept."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine.onnx.folder import OnnxFolder
from engine.runner import onnx_libraries as libraries
from engine.runner.onnx.errors import LoadFailed
from engine.runner.onnx.full_graph_session import compiled_at, whole_session
from engine.runner.onnx.model import LoadedFolder
from engine.runner.onnx.providers import QNN, ProviderChoice, chosen_provider
from engine.runner.onnx.static_shapes import FixedDecoder, read_facts
from engine.runner.onnx.vocabulary import FolderVocabulary
from engine.runner.protocol import LoadSettings
from quantize.onnx.fixed_folder import GRAPHS, FixedFacts


class FixedGenerator:
    """A sequence as the scheduler wants it: tokens are appended, the last one's logits read, and taken back."""

    def __init__(self, decoder: FixedDecoder, begin: int) -> None:
        self._decoder = decoder
        self._begin = begin
        self._tokens: list[int] = []
        self._row: Any = None

    def append_tokens(self, ids: Any) -> None:
        """Take tokens. The model's own first one is in the cache already. Raises: ValueError: they do not fit."""
        self._tokens += [int(i) for i in ids]
        fresh = self._tokens[self._decoder.length - self._before :]
        if len(fresh) > self._decoder.room:
            raise ValueError("the context is full")
        if not fresh:  # nothing but the first token: its own logits were never kept
            self._row = self._decoder.step(self._begin)
            self._decoder.rewind(1)
            return
        self._decoder.read(fresh[:-1])
        self._row = self._decoder.step(fresh[-1])

    @property
    def _before(self) -> int:
        """Cells before the text's own tokens: one, unless the text begins as every sequence does."""
        return int(self._tokens[:1] != [self._begin])

    def get_logits(self) -> Any:
        """Logits behind the last token, (1, 1, vocabulary)."""
        return self._row[None, None]

    def rewind_to(self, count: int) -> None:
        """Keep the first `count` tokens."""
        before, self._tokens = self._before, self._tokens[:count]
        self._decoder.rewind(count + before)

    def set_runtime_option(self, _name: str, _value: str) -> None:
        """A piece is short; it is not interrupted."""


@dataclass
class LoadedFixed(LoadedFolder):
    """A loaded folder of fixed graphs. Every sequence has a cache of its own over the same two sessions."""

    facts: FixedFacts | None = None
    sessions: list[Any] = field(default_factory=list)

    def generator(self, max_length: int) -> Any:  # noqa: ARG002 - its cache always has the graphs' length
        """A sequence with a cache of its own."""
        assert self.facts is not None
        return FixedGenerator(FixedDecoder(self.folder.path, self.facts, self.sessions), self.facts.begin)


def load(
    settings: LoadSettings,
    folder: OnnxFolder,
    _graphs: list[Any],
    compiling: Callable[[float], None] = lambda _: None,
) -> LoadedFixed:
    """Load the folder and sample one token from it. `compiling` gets how far a first compile is, 0 to 1.

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
        # One cell is the first token's, which may not be among the text's.
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
    """One graph's session. On the NPU nothing may stay behind, and what was compiled is kept and taken again."""
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
