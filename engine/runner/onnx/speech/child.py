"""Child process: reads one recording after the other, and answers where speech is and what was said.

Usage: python -m engine.runner.onnx.speech.child MEMORY_BYTES TIME_S
"""

import re
from pathlib import Path

import msgspec
import numpy as np

from devices.cores import allowed_cores
from devices.msgspec_lock import learned
from engine.chat.child_service import serve
from engine.runner.onnx.speech.audio import RATE, BadSound, Samples, read_sound
from engine.runner.onnx.speech.fixed import FixedMoonshine
from engine.runner.onnx.speech.moonshine import Moonshine
from engine.runner.onnx.speech.protocol import (
    DetectSpeech,
    Refused,
    Request,
    SpeechSegments,
    Transcribe,
    Transcript,
)
from engine.runner.onnx.speech.vad import LONGEST_S, WINDOW, VoiceDetector, speech
from quantize.onnx.request import SPEECH_FACTS as FACTS


class FileRefused(Exception):
    """A file of the model cannot be loaded on the processor; the message says why."""


class Transcriber:
    """The models, loaded with the first recording, and the recording that is being read."""

    def __init__(self) -> None:
        self._models: tuple[VoiceDetector, Moonshine | FixedMoonshine] | None = None
        self._loaded: tuple[str, str] = ("", "")
        self._samples: Samples = np.zeros(0, np.float32)

    def answer(self, body: bytes) -> bytes:
        """One request."""
        request = msgspec.msgpack.decode(body, type=learned(Request))
        try:
            answer = self._detect(request) if isinstance(request, DetectSpeech) else self._transcribe(request)
        except BadSound as error:
            return msgspec.msgpack.encode(Refused(message=str(error), sound=True))
        except FileRefused as error:
            return msgspec.msgpack.encode(Refused(message=str(error), model=True))
        except Exception as error:  # noqa: BLE001 - ONNX Runtime has many; the next recording may be read
            return msgspec.msgpack.encode(Refused(message=_short(error)))
        return msgspec.msgpack.encode(answer)

    def _detect(self, request: DetectSpeech) -> SpeechSegments:
        self._samples = read_sound(request.sound)
        if self._models is None or self._loaded != (request.folder, request.provider):
            self._models = None
            try:
                self._models = _load(request)
            except Exception as error:
                if request.provider:  # another device may be at fault
                    raise
                raise FileRefused(_short(error)) from error
            self._loaded = (request.folder, request.provider)
        model = self._models[1]
        longest, notes = (model.longest_s, model.notes) if isinstance(model, FixedMoonshine) else (LONGEST_S, [])
        chances = self._models[0].probabilities(self._samples)
        segments = tuple(
            (first / RATE, last / RATE, float(np.mean(chances[first // WINDOW : last // WINDOW + 1])))
            for first, last in speech(chances, len(self._samples), longest)
        )
        return SpeechSegments(seconds=len(self._samples) / RATE, segments=segments, notes=tuple(notes))

    def _transcribe(self, request: Transcribe) -> Transcript:
        assert self._models is not None
        first, last = round(request.first_s * RATE), round(request.last_s * RATE)
        text, tokens, logprob = self._models[1].transcribe(self._samples[first:last])
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
