"""Transcribes recordings: manages the child process, its device, its memory and its lifetime."""

import asyncio
import itertools
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from devices.child import BoundedChild, ChildFailed
from devices.errors import PoolExceeded
from devices.memory_ledger import DeviceBytes, Ledger
from devices.msgspec_lock import learned
from engine.core.errors import BadModelFile, EnvironmentFault, InputFault
from engine.core.ownership import request_owner
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
# Recordings that take turns. Each holds up to an hour of samples in the child, in addition to RESIDENT_BYTES.
MAX_OPEN, MAX_OPEN_OF_OWNER = 4, 2
RECORDING_BYTES: Final = 230 << 20
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


class Recording:
    """A recording that is being transcribed.

    `spent_s` is the child's time for it, starting at the least of its peers' times.
    """

    def __init__(self, number: int, owner: str, spent_s: float) -> None:
        self.number, self.owner, self.spent_s = number, owner, spent_s
        self.open = False


class Turns:
    """Lets one recording at a time use the child, for one step.

    The next is the one of the owner with the least time so far, and among that owner's recordings the one with the
    least. A new one starts at the least time of its peers, so that it neither waits for all their remaining work
    nor overtakes them forever. `may_open` returns whether the child may hold that many recordings. Use from one
    loop.
    """

    def __init__(self, may_open: Callable[[int], bool]) -> None:
        self._may_open = may_open
        self._numbers = itertools.count(1)
        self._recordings: list[Recording] = []
        self._spent: dict[str, float] = {}
        self._waiting: dict[Recording, asyncio.Future[None]] = {}
        self._busy = False

    @property
    def open_recordings(self) -> tuple[int, ...]:
        """Numbers of the recordings that the child holds."""
        return tuple(r.number for r in self._recordings if r.open)

    @contextmanager
    def entered(self, owner: str) -> Iterator[Recording]:
        """A new recording, which may take turns inside the context."""
        self._spent.setdefault(owner, min(self._spent.values(), default=0.0))
        spent_s = min((r.spent_s for r in self._recordings if r.owner == owner), default=0.0)
        recording = Recording(next(self._numbers), owner, spent_s)
        self._recordings.append(recording)
        try:
            yield recording
        finally:
            self._recordings.remove(recording)
            if not any(r.owner == owner for r in self._recordings):
                del self._spent[owner]
            self._begin_next()

    @asynccontextmanager
    async def turn(self, recording: Recording) -> AsyncGenerator[None, None]:
        """Wait for the recording's next turn, which ends with the context."""
        begins = self._waiting[recording] = asyncio.get_running_loop().create_future()
        self._begin_next()
        began_s = 0.0
        try:
            await begins
            began_s = time.monotonic()
            yield
        finally:
            if self._waiting.pop(recording, None) is None:
                self._busy = False
                spent_s = time.monotonic() - began_s if began_s else 0.0
                recording.spent_s += spent_s
                self._spent[recording.owner] += spent_s
            self._begin_next()

    def _begin_next(self) -> None:
        if self._busy:
            return
        waiting = [r for r, begins in self._waiting.items() if not begins.done()]  # done: it was cancelled
        for recording in sorted(waiting, key=lambda r: (self._spent[r.owner], r.spent_s)):
            if recording.open or self._has_place(recording):
                self._busy = recording.open = True
                self._waiting.pop(recording).set_result(None)
                return

    def _has_place(self, recording: Recording) -> bool:
        owners = [r.owner for r in self._recordings if r.open]
        if len(owners) >= MAX_OPEN or owners.count(recording.owner) >= MAX_OPEN_OF_OWNER:
            return False
        return not owners or self._may_open(len(owners) + 1)


class Speech:
    """Transcribes recordings in a child process, which starts with the first one; they take turns.

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
        self._turns = Turns(self._has_memory)
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
        try:
            with self._turns.entered(request_owner.get()) as recording:
                detect = partial(self._detect, recording, sound, str(folder), provider)
                async with self._turns.turn(recording):
                    detected = await detect()
                for note in detected.notes:
                    log.info("speech: %s", note)
                yield detected
                for start, end, chance in detected.segments:
                    request = Transcribe(recording=recording.number, first_s=start, last_s=end)
                    async with self._turns.turn(recording):
                        transcript = await self._ask(request)
                        if isinstance(transcript, Refused):  # the child ended during another recording
                            await detect()
                            transcript = await self._ask(request)
                    assert isinstance(transcript, Transcript)
                    yield Segment(start=start, end=end, transcript=transcript, no_speech=1 - chance)
        finally:
            if num_open := len(self._turns.open_recordings):
                self._has_memory(num_open)
            else:
                self._stay()
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
        log.info("speech on %s: %s", provider or "the CPU", "; ".join(sentences(choice.reasons)))
        return (fixed, provider) if provider or missing else (self.folder, "")

    async def _detect(self, recording: Recording, sound: bytes, folder: str, provider: str) -> SpeechSegments:
        """Retry once, because a child that was killed while idle fails here too, not only one that crashes."""
        request = DetectSpeech(
            recording=recording.number,
            open_recordings=self._turns.open_recordings,
            sound=sound,
            folder=folder,
            provider=provider,
            cache=str(self._cache),
        )
        try:
            answer = await self._ask(request)
        except ChildDied:
            answer = await self._ask(request)
        assert isinstance(answer, SpeechSegments)
        return answer

    def _has_memory(self, num_recordings: int) -> bool:
        """Whether the child may hold that many recordings; reserves their memory."""
        try:
            num_bytes = RESIDENT_BYTES + (num_recordings - 1) * RECORDING_BYTES
            self._ledger.reserve(OWNER, {"cpu": DeviceBytes(num_bytes)}, OWNER)
        except PoolExceeded:
            return False
        return True

    def _stay(self) -> None:
        if self._going is not None:
            self._going.cancel()

    def _started(self) -> BoundedChild:
        self._stay()
        if self._child is None:
            if not self._has_memory(len(self._turns.open_recordings)):
                raise SpeechFailed("Not enough memory to transcribe a recording now.")
            self._child = BoundedChild(
                "engine.runner.onnx.speech.child", timeout_s=STEP_S, memory_bytes=ADDRESS_BYTES
            )
        return self._child

    async def _ask(self, request: Request) -> Answer:
        """Send a request to the child. A recording that it does not know is the only refusal that is returned."""
        try:
            answer = await self._started().ask(msgspec.msgpack.encode(request))
        except ChildFailed as error:
            why = "took too long" if error.timed_out else "ran out of memory" if error.out_of_memory else "ended"
            kind = SpeechFailed if error.timed_out else ChildDied
            raise kind(f"The transcription process {why}; it restarts with the next recording.") from error
        result: Answer = msgspec.msgpack.decode(answer, type=learned(Answer))
        if isinstance(result, Refused) and result.sound:
            raise InputFault(f"file: the recording cannot be read: {result.message}.", "file")
        if isinstance(result, Refused) and result.model and isinstance(request, DetectSpeech):
            raise BadModelFile(request.folder, result.message)
        if isinstance(result, Refused) and not result.unknown:
            raise SpeechFailed(f"The speech model failed: {result.message}")
        return result

    def _leave(self) -> None:
        """Called after idle time: end the child and free its memory."""
        child, self._child = self._child, None
        self._ledger.release(OWNER)
        if child is not None:
            asyncio.get_running_loop().run_in_executor(None, child.close)

    async def close(self) -> None:
        self._stay()
        if self._child is not None:
            await asyncio.to_thread(self._child.close)
            self._child = None


def speech_of(placer: Placer, models: ServedModels, cache: Path) -> Speech:
    """The speech service of a server."""

    def choose(folder: OnnxFolder, pin: str | None) -> ProviderChoice:
        return placer.side_work(folder, msgspec.structs.replace(models.overrides, device=pin or None))

    return Speech(placer.ledger, choose, cache)
