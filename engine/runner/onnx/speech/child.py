"""Child process: reads recordings one by one, and returns speech segments and transcripts.

Usage: python -m engine.runner.onnx.speech.child MEMORY_BYTES TIME_S
"""

import math
import re
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from devices.child_service import serve
from devices.msgspec_lock import learned
from devices.process_memory import allowed_cores
from engine.onnx.folder import OnnxFolder
from engine.runner.onnx.errors import LoadFailed
from engine.runner.onnx.full_graph_session import compiled_at, whole_session
from engine.runner.onnx.providers import CPU, chosen_provider
from engine.runner.onnx.speech.audio import RATE, BadSound, Samples, read_sound
from engine.runner.onnx.speech.moonshine import (
    BEGIN,
    END,
    SHORTEST,
    SPARE_TOKENS,
    TOKENS_A_SECOND,
    BadSpeechModel,
    Moonshine,
    log_probability,
    read_pieces,
    words,
)
from engine.runner.onnx.speech.protocol import (
    DetectSpeech,
    Refused,
    Request,
    SpeechSegments,
    Transcribe,
    Transcript,
)
from engine.runner.onnx_libraries import onnxruntime, reason
from engine.runner.protocol import LoadSettings
from quantize.onnx.request import SPEECH_FACTS as FACTS
from quantize.onnx.speech import EMBEDDING, GRAPHS, SpeechShape, frames_of, rotary_rows

# Moonshine in fixed shapes, on the CPU or completely on an NPU: pads the audio, then one token per step.

# Added to scores that must not count: the probability becomes 0, in 16 bits too.
_MASKED: Final = -1000.0
_MAX_FACTS_BYTES: Final = 1 << 16


def read_facts(folder: Path) -> SpeechShape:
    """Return the folder's facts. Raises: BadSpeechModel."""
    try:
        with (folder / FACTS).open("rb") as file:
            facts = msgspec.json.decode(file.read(_MAX_FACTS_BYTES), type=learned(SpeechShape))
    except (OSError, ValueError, RecursionError) as error:
        raise BadSpeechModel(f"{FACTS} cannot be read: {error}") from error
    sizes = (facts.samples, facts.tokens, facts.layers, facts.embd, facts.heads, facts.vocab)
    if min(sizes) < 1 or max(sizes) > 1 << 24 or frames_of(facts.samples) != (facts.first, facts.frames):
        raise BadSpeechModel(f"{FACTS} has impossible sizes {sizes}")
    return facts


class FixedMoonshine:
    """One model. `notes` describe the placement of its graphs' operators."""

    def __init__(
        self,
        folder: Path,
        threads: int,
        *,
        provider: str = "",
        cache: Path | None = None,
    ) -> None:
        """Raises: BadSpeechModel, LoadFailed: the provider is missing or does not take the whole graph."""
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
                session, note = whole_session(ort, options, graph, choice, compiled=compiled, floats=True)
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
        """Maximum seconds of audio."""
        return self.shape.samples / RATE

    def transcribe(self, samples: Samples) -> tuple[str, list[int], float]:
        """Return the text of one speech segment, its tokens, and the mean of their log probabilities."""
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
        inputs = {"sound": sound, "weights": weights, "mask": mask}
        encoded = dict(zip(self._outputs[0], self._encoder.run(self._outputs[0], inputs), strict=True))
        past = self._empty()
        written = np.full((1, 1, 1, s.tokens + 1), _MASKED, np.float32)
        written[..., -1] = 0
        tokens: list[int] = []
        total, last = 0.0, BEGIN
        most = min(s.tokens, math.ceil(length / RATE * TOKENS_A_SECOND) + SPARE_TOKENS)
        while len(tokens) < most:
            at = len(tokens)
            inputs = {
                "hidden": self._table[last][None, None].astype(np.float32),
                "cos": self._cos[at][None, None, None],
                "sin": self._sin[at][None, None, None],
                "written": written,
                "mask": mask,
                **past,
                **encoded,
            }
            results = dict(zip(self._outputs[1], self._decoder.run(self._outputs[1], inputs), strict=True))
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
        inputs: dict[str, Any] = {}
        for layer in range(s.layers):
            inputs[f"past.{layer}.key"] = np.zeros((1, s.heads, s.head_dim, s.tokens), np.float32)
            inputs[f"past.{layer}.value"] = np.zeros((1, s.heads, s.tokens, s.head_dim), np.float32)
        return inputs


# Finds speech with Silero's detector, and splits it into segments that a transcriber can take.

# Source: silero-vad 6.2, utils_vad.py: windows of 512 samples after the last 64 of the previous one, at 16 kHz;
# speech starts above 0.5 and ends below 0.35.
WINDOW, _CONTEXT = 512, 64
_BEGINS, _ENDS = 0.5, 0.35
# Minimum pause between segments, longer than a breath, and padding around them: the detector misses soft word ends.
_PAUSE_S, _AROUND_S = 0.4, 0.15
_SHORTEST_S: Final = 0.2
_NEAR_S, _TOGETHER_S = 1.0, 12.0
# Moonshine was trained on segments of up to 30 s.
LONGEST_S: Final = 24.0


class VoiceDetector:
    """Silero on one thread. Windows are processed in order, each with the state of the previous one."""

    def __init__(self, path: Path) -> None:
        ort = onnxruntime()
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._names = {one.name for one in self._session.get_inputs()}

    def probabilities(self, samples: Samples) -> list[float]:
        """Return the probability of speech in each window."""
        state: Any = np.zeros((2, 1, 128), np.float32)
        before = np.zeros(_CONTEXT, np.float32)
        values = []
        for start in range(0, len(samples), WINDOW):
            window = samples[start : start + WINDOW]
            window = np.pad(window, (0, WINDOW - len(window)))
            inputs = {"input": np.concatenate((before, window))[None], "state": state}
            if "sr" in self._names:
                inputs["sr"] = np.array(RATE, np.int64)
            (chance, state) = self._session.run(None, inputs)
            before = window[-_CONTEXT:]
            values.append(float(chance[0, 0]))
        return values


def speech(probabilities: list[float], num_samples: int, longest_s: float = LONGEST_S) -> list[tuple[int, int]]:
    """Return speech segments as (first sample, end), at most `longest_s` each.

    A longer segment is split where speech is least likely in its last third.
    """
    spans: list[tuple[int, int]] = []
    started: int | None = None
    quiet = 0
    for index, chance in enumerate([*probabilities, *[0.0] * (round(_PAUSE_S * RATE / WINDOW) + 1)]):
        if started is None:
            if chance >= _BEGINS:
                started, quiet = index, 0
            continue
        quiet = 0 if chance >= _ENDS else quiet + 1
        if quiet * WINDOW >= _PAUSE_S * RATE:
            spans += _cut(probabilities, started, index + 1 - quiet, longest_s)
            started = None
    around = int(_AROUND_S * RATE)
    pieces = [(first * WINDOW, last * WINDOW) for first, last in spans]
    pieces = [(first, last) for first, last in pieces if last - first >= _SHORTEST_S * RATE]
    out: list[tuple[int, int]] = []
    for first, last in pieces:
        start = max(0, first - around, out[-1][1] if out else 0)
        out.append((start, min(num_samples, last + around)))
    return _joined([(first, last) for first, last in out if last > first], min(_TOGETHER_S, longest_s))


def _joined(pieces: list[tuple[int, int]], together_s: float) -> list[tuple[int, int]]:
    """Join neighbours with a short gap: the model recognizes words better in context."""
    out: list[tuple[int, int]] = []
    for first, last in pieces:
        near = out and first - out[-1][1] <= _NEAR_S * RATE and last - out[-1][0] <= together_s * RATE
        if near:
            out[-1] = (out[-1][0], last)
        else:
            out.append((first, last))
    return out


def _cut(probabilities: list[float], first: int, last: int, longest_s: float) -> list[tuple[int, int]]:
    """Split a segment into parts that fit even with their padding."""
    longest = int((longest_s - 2 * _AROUND_S) * RATE / WINDOW)
    out = []
    while last - first > longest:
        part = probabilities[first + 2 * longest // 3 : first + longest]
        middle = first + 2 * longest // 3 + int(np.argmin(part)) + 1
        out.append((first, middle))
        first = middle
    return [*out, (first, last)]


class FileRefused(Exception):
    """A model file cannot be loaded on the CPU; the message says why."""


class Transcriber:
    """The models, loaded with the first recording, and the open recordings."""

    def __init__(self) -> None:
        self._models: tuple[VoiceDetector, Moonshine | FixedMoonshine] | None = None
        self._loaded: tuple[str, str] = ("", "")
        self._recordings: dict[int, Samples] = {}

    def answer(self, body: bytes) -> bytes:
        request = msgspec.msgpack.decode(body, type=learned(Request))
        try:
            answer = self._detect(request) if isinstance(request, DetectSpeech) else self._transcribe(request)
        except BadSound as error:
            return msgspec.msgpack.encode(Refused(message=str(error), sound=True))
        except FileRefused as error:
            return msgspec.msgpack.encode(Refused(message=str(error), model=True))
        except Exception as error:
            return msgspec.msgpack.encode(Refused(message=_short(error)))
        return msgspec.msgpack.encode(answer)

    def _detect(self, request: DetectSpeech) -> SpeechSegments:
        self._recordings = {n: self._recordings[n] for n in request.open_recordings if n in self._recordings}
        samples = self._recordings[request.recording] = read_sound(request.sound)
        if self._models is None or self._loaded != (request.folder, request.provider):
            self._models = None
            try:
                self._models = _load(request)
            except Exception as error:
                if request.provider:  # the device may be the cause
                    raise
                raise FileRefused(_short(error)) from error
            self._loaded = (request.folder, request.provider)
        model = self._models[1]
        longest, notes = (model.longest_s, model.notes) if isinstance(model, FixedMoonshine) else (LONGEST_S, [])
        chances = self._models[0].probabilities(samples)
        segments = tuple(
            (first / RATE, last / RATE, float(np.mean(chances[first // WINDOW : last // WINDOW + 1])))
            for first, last in speech(chances, len(samples), longest)
        )
        return SpeechSegments(seconds=len(samples) / RATE, segments=segments, notes=tuple(notes))

    def _transcribe(self, request: Transcribe) -> Transcript | Refused:
        samples = self._recordings.get(request.recording)
        if samples is None or self._models is None:
            return Refused(message="the recording is not here", unknown=True)
        first, last = round(request.first_s * RATE), round(request.last_s * RATE)
        text, tokens, logprob = self._models[1].transcribe(samples[first:last])
        return Transcript(text=re.sub(r"\s+", " ", text), tokens=tuple(tokens), mean_logprob=logprob)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or repr(error)


def _load(request: DetectSpeech) -> tuple[VoiceDetector, Moonshine | FixedMoonshine]:
    folder = Path(request.folder)
    threads = min(4, allowed_cores())
    detector = VoiceDetector(folder / "silero_vad.onnx")
    if not (folder / FACTS).is_file():
        return detector, Moonshine(folder, threads)
    cache = Path(request.cache) if request.cache else None
    return detector, FixedMoonshine(folder, threads, provider=request.provider, cache=cache)


if __name__ == "__main__":
    serve(Transcriber().answer)
