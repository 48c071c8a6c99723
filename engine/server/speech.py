"""Transcribes recordings: manages the child process, its device, its memory and its lifetime."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

import msgspec

from devices.child import BoundedChild, ChildFailed
from devices.errors import PoolExceeded
from devices.memory_ledger import DeviceBytes, Ledger
from devices.msgspec_lock import learned
from engine.core.errors import BadModelFile, EnvironmentFault, InputFault
from engine.core.paths import installed_speech
from engine.message_catalog import sentences
from engine.onnx.folder import OnnxFolder
from engine.placement.onnx import ProviderChoice
from engine.placement.placer import Placer
from engine.runner.onnx.speech.protocol import (
    Answer,
    DetectSpeech,
    Refused,
    Request,
    SpeechSegments,
    Transcribe,
    Transcript,
)
from engine.server.models import ServedModels
from quantize.onnx.request import SPEECH_FACTS as FACTS

log = logging.getLogger(__name__)
NAME: Final = "moonshine-tiny-en"
LANGUAGES: Final = ("en",)
FILES: Final = ("encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin", "silero_vad.onnx")
# Subfolder for the output of `tessera onnx convert speech --fixed`, next to the model's files.
BESIDE: Final = "npu"
OWNER: Final = "speech"
# Measured in log-archive.md: the child with both models and a one-hour recording. Its address space is larger.
RESIDENT_BYTES: Final = 1000 << 20
ADDRESS_BYTES: Final = 4 << 30
# The longest step is voice detection in one hour of audio.
STEP_S: Final = 300.0
# Dictation comes in bursts. A child that is idle for this long is ended to free its memory.
IDLE_S: Final = 120.0


class NoSpeechModel(InputFault):
    """No speech model is installed."""

    code = "not_supported"


class SpeechFailed(EnvironmentFault):
    """The child died or timed out; the next recording starts a new one."""

    code = "speech_failed"


class ChildDied(SpeechFailed):
    """The child exited or was killed."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Transcript between two times in seconds, with the confidence of the model and the voice detector."""

    start: float
    end: float
    transcript: Transcript
    no_speech: float


class Speech:
    """Transcribes one recording at a time in a child process, which starts with the first one.

    `choose` returns the placement of a fixed-shape folder.
    """

    def __init__(
        self, ledger: Ledger, choose: Callable[[OnnxFolder, str | None], ProviderChoice], cache: Path
    ) -> None:
        self._ledger = ledger
        self.folder = installed_speech()
        self._choose = choose
        self._cache = cache
        self._child: BoundedChild | None = None
        self._turn = asyncio.Lock()
        self._going: asyncio.TimerHandle | None = None

    def is_installed(self) -> bool:
        """Whether a recording can be transcribed."""
        return not self._missing() or (self.folder / FACTS).is_file()

    def _missing(self) -> list[str]:
        return [name for name in FILES if not (self.folder / name).is_file()]

    async def transcribe(self, sound: bytes) -> AsyncGenerator[SpeechSegments | Segment, None]:
        """Yields the detected segments of a recording, then the transcript of each segment.

        Raises: NoSpeechModel; InputFault: the recording cannot be read; SpeechFailed.
        """
        folder, provider = await asyncio.to_thread(self._folder_and_provider)
        async with self._turn:
            child = self._started()
            cache = str(self._cache)
            try:
                request = DetectSpeech(sound=sound, folder=str(folder), provider=provider, cache=cache)
                detected = await self._detect(child, request)
                assert isinstance(detected, SpeechSegments)
                for note in detected.notes:
                    log.info("speech: %s", note)
                yield detected
                for start, end, chance in detected.segments:
                    transcript = await self._ask(child, Transcribe(first_s=start, last_s=end))
                    assert isinstance(transcript, Transcript)
                    yield Segment(start=start, end=end, transcript=transcript, no_speech=1 - chance)
            finally:
                self._going = asyncio.get_running_loop().call_later(IDLE_S, self._leave)

    def _folder_and_provider(self) -> tuple[Path, str]:
        """The model folder to use, and the provider for fixed shapes ("": the CPU).

        Raises:
            NoSpeechModel: No model is installed.
            SpeechFailed: The requested device cannot be used.
        """
        missing = self._missing()
        fixed = self.folder if (self.folder / FACTS).is_file() else self.folder / BESIDE
        if missing and fixed != self.folder:
            raise NoSpeechModel(
                f"No speech model is installed here ({missing[0]} is missing from {self.folder}): "
                "`python3 start.py speech` fetches Moonshine, about 80 MiB.",
                "model",
            )
        pin = os.environ.get("TESSERA_SPEECH_DEVICE")
        if not (fixed / FACTS).is_file():
            if pin not in {None, "", "cpu"}:
                hint = "`tessera onnx convert speech --fixed` makes the form that NPUs take"
                raise SpeechFailed(
                    f"TESSERA_SPEECH_DEVICE is {pin}, but the speech model is not there yet: {hint}."
                )
            return self.folder, ""
        try:
            choice = self._choose(OnnxFolder(path=fixed, kind="embedding", architecture=NAME, graphs=()), pin)
        except BadModelFile as error:
            raise SpeechFailed(f"The speech model cannot run on {pin}: {error.reason}") from error
        provider = choice.provider
        log.info("speech on %s: %s", provider or "the processor", "; ".join(sentences(choice.reasons)))
        return (fixed, provider) if provider or missing else (self.folder, "")

    async def _detect(self, child: BoundedChild, request: DetectSpeech) -> Answer:
        """Retry once, because a child that was killed while idle fails here too, not only one that crashes."""
        try:
            return await self._ask(child, request)
        except ChildDied:
            return await self._ask(child, request)

    def _started(self) -> BoundedChild:
        if self._going is not None:
            self._going.cancel()
        if self._child is None:
            try:
                self._ledger.reserve(OWNER, {"cpu": DeviceBytes(RESIDENT_BYTES)}, OWNER)
            except PoolExceeded as error:
                raise SpeechFailed(f"Not enough memory to hear anything now: {error}") from error
            self._child = BoundedChild(
                "engine.runner.onnx.speech.child", timeout_s=STEP_S, memory_bytes=ADDRESS_BYTES
            )
        return self._child

    async def _ask(self, child: BoundedChild, request: Request) -> Answer:
        try:
            answer = await child.ask(msgspec.msgpack.encode(request))
        except ChildFailed as error:
            why = "took too long" if error.timed_out else "ran out of memory" if error.out_of_memory else "ended"
            kind = SpeechFailed if error.timed_out else ChildDied
            raise kind(f"The process that hears {why}; it restarts with the next recording.") from error
        result: Answer = msgspec.msgpack.decode(answer, type=learned(Answer))
        if isinstance(result, Refused) and result.sound:
            raise InputFault(f"file: the recording cannot be read: {result.message}.", "file")
        if isinstance(result, Refused) and result.model and isinstance(request, DetectSpeech):
            raise BadModelFile(request.folder, result.message)
        if isinstance(result, Refused):
            raise SpeechFailed(f"The speech model failed: {result.message}")
        return result

    def _leave(self) -> None:
        """Called after idle time: end the child and free its memory."""
        child, self._child = self._child, None
        self._ledger.release(OWNER)
        if child is not None:
            asyncio.get_running_loop().run_in_executor(None, child.close)

    async def close(self) -> None:
        if self._going is not None:
            self._going.cancel()
        if self._child is not None:
            await asyncio.to_thread(self._child.close)
            self._child = None


def speech_of(placer: Placer, models: ServedModels, cache: Path) -> Speech:
    """The speech service of a server."""

    def choose(folder: OnnxFolder, pin: str | None) -> ProviderChoice:
        return placer.side_work(folder, msgspec.structs.replace(models.overrides, device=pin or None))

    return Speech(placer.ledger, choose, cache)
