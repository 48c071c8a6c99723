"""Child process: records from a microphone and writes the sound to its parent, and to nothing else.

Usage: python -m app.voice.microphone_child list
       python -m app.voice.microphone_child record [DEVICE]
       python -m app.voice.microphone_child record --from-wav FILE

`list` prints one JSON object. `record` writes frames: first a JSON object (`Opened` or `NotOpened`), then a
level and 16-bit samples. It ends when its parent closes the pipe or is gone.
"""

import contextlib
import os
import queue
import struct
import sys
import threading
import time
import wave
from array import array
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO, Final

import msgspec

from devices.child_command import write_answer
from devices.frames import claim_stdio, write_frame

RATE: Final = 16_000
FROM_WAV: Final = "--from-wav"
LEVEL: Final = struct.Struct("<f")
_FRAME_MS: Final = 100
_FRAME_BYTES: Final = RATE * 2 * _FRAME_MS // 1000
# Maximum frames waiting to be written; a parent that does not read for this long is stuck.
_WAITING_FRAMES: Final = 100


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """Recording has begun from the device of this name."""

    device: str


class NotOpened(msgspec.Struct, frozen=True, tag="not_opened"):
    """Recording is impossible. `reason`: no_library, no_device, unknown_device or failed."""

    reason: str
    detail: str = ""


def level(samples: bytes) -> float:
    """Loudness of 16-bit samples from 0 (silence) to 1 (as loud as possible)."""
    values = array("h", samples)
    return (sum(v * v for v in values) / len(values)) ** 0.5 / 32768 if values else 0.0


def captures() -> list[dict[str, Any]]:
    """The microphones, with their names and ids. Raises: ImportError; miniaudio.MiniaudioError: no sound system."""
    import miniaudio

    class Names(miniaudio.Devices):  # type: ignore[misc]  # the library has no types
        """Omits device formats: an error with one device would hide all others."""

        def _get_info(self, *_: object) -> dict[str, Any]:
            return {}

    devices: list[dict[str, Any]] = Names(_backends(miniaudio)).get_captures()
    return devices


def _backends(miniaudio: Any) -> list[Any]:
    """All sound systems except the one that only produces silence."""
    return [one for one in miniaudio.Backend if one is not miniaudio.Backend.NULL]


def from_wav(path: str) -> Iterator[bytes]:
    """Samples of a WAV file at the speed of a recording, then silence, as from a microphone."""
    with wave.open(path, "rb") as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            raise wave.Error(f"it needs {RATE} samples a second, one channel and 16 bits")
        count = _FRAME_BYTES // 2
        began, sent = time.monotonic(), 0
        while True:
            samples = file.readframes(count)
            sent += 1
            time.sleep(max(0.0, began + sent * _FRAME_MS / 1000 - time.monotonic()))
            yield samples.ljust(_FRAME_BYTES, b"\0")


def _from_microphone(name: str, opened: "queue.Queue[bytes]") -> tuple[Any, str]:
    """Start recording into the queue; returns the device and its name. Raises: _CannotOpenError."""
    try:
        import miniaudio
    except ImportError as error:
        raise _CannotOpenError(NotOpened("no_library", str(error))) from error
    try:
        devices = captures()
        chosen = next((one for one in devices if one["name"] == name), None)
        if not devices or (name and chosen is None):
            raise _CannotOpenError(NotOpened("unknown_device" if devices else "no_device", name))
        device = miniaudio.CaptureDevice(
            input_format=miniaudio.SampleFormat.SIGNED16,
            nchannels=1,
            sample_rate=RATE,
            buffersize_msec=_FRAME_MS,
            device_id=chosen["id"] if chosen else None,
            backends=_backends(miniaudio),
            app_name="Tessera",
        )
        collect = _collect(opened)
        next(collect)
        device.start(collect)
    except miniaudio.MiniaudioError as error:
        raise _CannotOpenError(NotOpened("failed" if name else "no_device", str(error))) from error
    return device, name


class _CannotOpenError(Exception):
    def __init__(self, why: NotOpened) -> None:
        super().__init__(why.reason)
        self.why = why


def _collect(sound: "queue.Queue[bytes]") -> Generator[None, bytes, None]:
    """Receives samples on the thread of the sound system."""
    while True:
        samples = yield
        with contextlib.suppress(queue.Full):
            sound.put_nowait(bytes(samples))


def _recorded(name: str) -> tuple[str, Iterator[bytes]]:
    sound: queue.Queue[bytes] = queue.Queue(_WAITING_FRAMES)
    device, shown = _from_microphone(name, sound)

    def frames() -> Iterator[bytes]:
        open_device = device  # the recording ends when this reference is dropped
        while open_device is not None:
            yield sound.get()

    return shown, frames()


def record(arguments: list[str], sink: BinaryIO) -> None:
    """Write frames until the parent is gone."""
    try:
        if arguments[:1] == [FROM_WAV]:
            name, frames = arguments[1], from_wav(arguments[1])
        else:
            name, frames = _recorded(arguments[0] if arguments else "")
        first = next(frames)
    except _CannotOpenError as error:
        write_frame(sink, msgspec.json.encode(error.why))
        return
    except (OSError, wave.Error, EOFError) as error:
        write_frame(sink, msgspec.json.encode(NotOpened("failed", str(error))))
        return
    write_frame(sink, msgspec.json.encode(Opened(name)))
    with contextlib.suppress(OSError):
        while True:
            write_frame(sink, LEVEL.pack(level(first)) + first)
            first = next(frames)


def _end_with(parent: BinaryIO) -> None:
    """End this process when its parent closes the pipe, even while a driver hangs."""
    parent.read()
    os._exit(0)


def main() -> None:
    """List the microphones, or record."""
    if sys.argv[1] == "list":
        try:
            write_answer({"devices": [one["name"] for one in captures()]})
        except Exception as error:  # noqa: BLE001 - the library's own, or it is missing
            write_answer({"devices": [], "why": str(error)})
        return
    source, sink = claim_stdio()
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()
    record(sys.argv[2:], sink)


if __name__ == "__main__":
    main()
