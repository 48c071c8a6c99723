"""Moonshine in fixed shapes, on the processor or whole on an NPU: sound is filled up, then one token a step."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from devices.msgspec_lock import learned
from engine.onnx.folder import OnnxFolder
from engine.runner.onnx.errors import LoadFailed
from engine.runner.onnx.full_graph_session import compiled_at, whole_session
from engine.runner.onnx.providers import CPU, chosen_provider
from engine.runner.onnx.speech.audio import RATE, Samples
from engine.runner.onnx.speech.moonshine import (
    BEGIN,
    END,
    SHORTEST,
    SPARE_TOKENS,
    TOKENS_A_SECOND,
    BadSpeechModel,
    log_probability,
    read_pieces,
    words,
)
from engine.runner.onnx_libraries import onnxruntime, reason
from engine.runner.protocol import LoadSettings
from quantize.onnx.request import SPEECH_FACTS as FACTS
from quantize.onnx.speech import EMBEDDING, GRAPHS, SpeechShape, frames_of, rotary_rows

# What a score that must not count is lowered by: no probability is left, in 16 bits too.
_MASKED: Final = -1000.0
_MAX_FACTS_BYTES: Final = 1 << 16


def read_facts(folder: Path) -> SpeechShape:
    """The folder's facts. Raises: BadSpeechModel."""
    try:
        with (folder / FACTS).open("rb") as file:
            found = msgspec.json.decode(file.read(_MAX_FACTS_BYTES), type=learned(SpeechShape))
    except (OSError, ValueError, RecursionError) as error:
        raise BadSpeechModel(f"{FACTS} cannot be read: {error}") from error
    sizes = (found.samples, found.tokens, found.layers, found.embd, found.heads, found.vocab)
    if min(sizes) < 1 or max(sizes) > 1 << 24 or frames_of(found.samples) != (found.first, found.frames):
        raise BadSpeechModel(f"{FACTS} has impossible sizes {sizes}")
    return found


class FixedMoonshine:
    """One model. `notes` say where the operators of its graphs are."""

    def __init__(
        self,
        folder: Path,
        threads: int,
        *,
        provider: str = "",
        cache: Path | None = None,
        on_compile: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Raises: BadSpeechModel, LoadFailed: the provider is not here or does not take all of it."""
        self.shape = s = read_facts(folder)
        self._pieces = read_pieces((folder / "tokenizer.bin").read_bytes())
        self._table = np.fromfile(folder / EMBEDDING, np.float16)
        if self._table.size != s.vocab * s.embd:
            raise BadSpeechModel(f"{EMBEDDING} is not what {FACTS} says")
        self._table = self._table.reshape(s.vocab, s.embd)
        self._cos, self._sin = rotary_rows(s, s.tokens + 1)
        ort = onnxruntime()
        about = OnnxFolder(path=folder, kind="embedding", architecture="moonshine", graphs=())
        choice = chosen_provider(LoadSettings(path=str(folder), provider=provider or CPU), about)
        self.notes: list[str] = []
        sessions = []
        for name in GRAPHS:
            options = ort.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
            graph = folder / f"{name}.onnx"
            facts = (graph.stat().st_size, graph.stat().st_mtime_ns, s)
            compiled = compiled_at(cache, facts, choice, name)
            try:
                session, note = whole_session(
                    ort, options, graph, choice, compiled=compiled, floats=True, on_compile=on_compile
                )
            except LoadFailed:
                raise
            except Exception as error:
                raise LoadFailed(choice.explain(reason(error))) from error
            sessions.append(session)
            self.notes += [note] if note else []
        self._encoder, self._decoder = sessions
        self._outputs = [[one.name for one in session.get_outputs()] for session in sessions]

    @property
    def longest_s(self) -> float:
        """Seconds of sound that fit."""
        return self.shape.samples / RATE

    def transcribe(self, samples: Samples) -> tuple[str, list[int], float]:
        """The words of one piece of speech, their tokens, and the mean of their log probabilities."""
        s = self.shape
        if len(samples) > s.samples:
            raise ValueError(f"{len(samples) / RATE:.1f} s of sound do not fit into {self.longest_s:.1f} s")
        length = max(len(samples), SHORTEST)
        first, frames = frames_of(length)
        sound = np.zeros((1, s.samples), np.float32)
        sound[0, : len(samples)] = samples
        weights = np.zeros((1, 1, s.first), np.float32)
        weights[..., :first] = 1 / first
        mask = np.full((1, 1, 1, s.frames), _MASKED, np.float32)
        mask[..., :frames] = 0
        given = {"sound": sound, "weights": weights, "mask": mask}
        encoded = dict(zip(self._outputs[0], self._encoder.run(self._outputs[0], given), strict=True))
        past = self._empty()
        written = np.full((1, 1, 1, s.tokens + 1), _MASKED, np.float32)
        written[..., -1] = 0
        tokens: list[int] = []
        total, last = 0.0, BEGIN
        most = min(s.tokens, math.ceil(length / RATE * TOKENS_A_SECOND) + SPARE_TOKENS)
        while len(tokens) < most:
            at = len(tokens)
            given = {
                "hidden": self._table[last][None, None].astype(np.float32),
                "cos": self._cos[at][None, None, None],
                "sin": self._sin[at][None, None, None],
                "written": written,
                "mask": mask,
                **past,
                **encoded,
            }
            results = dict(zip(self._outputs[1], self._decoder.run(self._outputs[1], given), strict=True))
            last, chance = log_probability(results["logits"][0, -1])
            total += chance
            if last == END:
                break
            for name, cells in past.items():
                new = results[name.replace("past.", "new.")]
                cells[(..., at) if name.endswith("key") else (slice(None), slice(None), at)] = (
                    new[..., 0] if name.endswith("key") else new[:, :, 0]
                )
            written[..., at] = 0
            tokens.append(last)
        return words(self._pieces, tokens), tokens, total / max(1, len(tokens))

    def _empty(self) -> dict[str, Any]:
        s = self.shape
        found: dict[str, Any] = {}
        for layer in range(s.layers):
            found[f"past.{layer}.key"] = np.zeros((1, s.heads, s.head_dim, s.tokens), np.float32)
            found[f"past.{layer}.value"] = np.zeros((1, s.heads, s.tokens, s.head_dim), np.float32)
        return found
