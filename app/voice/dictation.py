"""Live transcripts: sound from the child that records, and the words that the speech model finds in it."""

import subprocess
import wave
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import msgspec

from app.voice.microphone_child import FROM_WAV, LEVEL, RATE, NotOpened, Opened
from devices.child import run_child, spawn
from devices.child_command import child_command
from devices.environment import without_secrets
from devices.frames import read_frame
from devices.msgspec_lock import learned

if TYPE_CHECKING:
    from engine.api.speech import SpokenSegment

# A device with this prefix is a WAV file that replaces the microphone. Tests use it.
WAV: Final = "wav:"
_BYTES_A_SECOND: Final = RATE * 2
_LIST_S: Final = 10.0
# Words before a pause of this length are final: pauses within a sentence are shorter.
PAUSE_S: Final = 0.8
# Amount of sound before the first word to keep, so that the word is not cut off.
_BEFORE_S: Final = 1.0


@dataclass(frozen=True)
class Sound:
    """A tenth of a second of 16-bit samples, and how loud it is (0 to 1)."""

    samples: bytes
    level: float


class CannotRecord(Exception):
    """The microphone cannot be used. `reason` is that of `NotOpened`, or "ended": it stopped by itself."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class Microphone:
    """Sound from a child process, which records from its start until `close`.

    The child ends with this process too, because their pipe ends. Nothing is written to disk.
    """

    def __init__(self, device: str) -> None:
        """Start recording. Raises: CannotRecord."""
        wav = device.removeprefix(WAV)
        arguments = [FROM_WAV, wav] if wav != device else [device]
        command = child_command("app.voice.microphone_child", "record", *arguments)
        try:
            self._process = spawn(
                command,
                without_secrets(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise CannotRecord("failed", error.strerror or str(error)) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def __iter__(self) -> Iterator[Opened | Sound]:
        """Yield an event when recording has begun, then the sound. Raises: CannotRecord."""
        first = self._frame()
        if first is None:
            raise CannotRecord("ended")
        opening: Opened | NotOpened = msgspec.json.decode(first, type=learned(Opened | NotOpened))
        if isinstance(opening, NotOpened):
            raise CannotRecord(opening.reason, opening.detail)
        yield opening
        while (body := self._frame()) is not None:
            yield Sound(body[LEVEL.size :], LEVEL.unpack_from(body)[0])
        raise CannotRecord("ended")

    def _frame(self) -> bytes | None:
        with suppress(OSError, ValueError):  # `close` closed the pipe
            return read_frame(cast("BinaryIO", self._process.stdout))
        return None

    def close(self) -> None:
        """End the recording and wait until its process is gone."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()


def microphones() -> tuple[str, ...]:
    """Names of the microphones; the child that lists them records nothing."""
    answer = run_child(child_command("app.voice.microphone_child", "list"), _LIST_S, without_secrets()).answer
    return tuple(str(name) for name in answer["devices"]) if answer else ()


@dataclass
class LiveTranscript:
    """The sound whose words may still change, and the facts known about it.

    `silent_s` is the transcribed time since the last word, `heard_s` the time since the beginning.
    """

    silent_s: float = 0.0
    heard_s: float = 0.0
    _pending: bytearray = field(default_factory=bytearray)
    _asked_bytes: int = 0
    _dropped_s: float = 0.0
    _last_word_s: float = 0.0

    def add(self, samples: bytes) -> None:
        """Append sound."""
        self._pending += samples
        self.heard_s += len(samples) / _BYTES_A_SECOND

    @property
    def new_s(self) -> float:
        """Seconds of sound that no transcript covers yet."""
        return (len(self._pending) - self._asked_bytes) / _BYTES_A_SECOND

    def sound(self) -> bytes:
        """All pending sound as a WAV file, to be transcribed now."""
        self._asked_bytes = len(self._pending)
        return wav_file(bytes(self._pending))

    def take(self, segments: "Sequence[SpokenSegment]", *, last: bool = False) -> tuple[str, str]:
        """Process the transcript of the last `sound`; return the final words, and those that may still change.

        With `last`, all are final.
        """
        asked_s = self._asked_bytes / _BYTES_A_SECOND
        words = [one for one in segments if one.text.strip()]
        if words:
            self._last_word_s = self._dropped_s + min(asked_s, words[-1].end)
        self.silent_s = self._dropped_s + asked_s - self._last_word_s
        if last:
            self._drop(asked_s)
            return _joined(words), ""
        is_final = [one is not words[-1] or asked_s - one.end >= PAUSE_S for one in words]
        done = [one for one, final in zip(words, is_final, strict=True) if final]
        rest = [one for one, final in zip(words, is_final, strict=True) if not final]
        if done:
            self._drop(done[-1].end if rest else max(done[-1].end, asked_s - _BEFORE_S))
        elif not words:
            self._drop(asked_s - _BEFORE_S)
        return _joined(done), _joined(rest)

    def forget(self) -> None:
        """Drop the sound of the last transcript: its words will not be requested again."""
        self._drop(self._asked_bytes / _BYTES_A_SECOND)

    def _drop(self, seconds: float) -> None:
        count = min(len(self._pending), max(0, int(seconds * RATE) * 2))
        del self._pending[:count]
        self._dropped_s += count / _BYTES_A_SECOND
        self._asked_bytes = max(0, self._asked_bytes - count)


def _joined(segments: "Sequence[SpokenSegment]") -> str:
    return " ".join(one.text.strip() for one in segments)


def wav_file(samples: bytes) -> bytes:
    """16-bit samples as a WAV file in memory."""
    out = BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples)
    return out.getvalue()
