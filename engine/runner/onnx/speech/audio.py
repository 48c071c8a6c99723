"""Decodes audio to mono samples, 16 kHz, 32-bit floats. The bytes are untrusted: call in a child process."""

import math
import os
import struct
import subprocess
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from devices.programs import installed_program

Samples = npt.NDArray[np.float32]
RATE: Final = 16_000
MAX_SECONDS: Final = 3600
_MIN_RATE, _MAX_RATE = 1000, 384_000
_MAX_CHANNELS: Final = 32
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# Audio is resampled in blocks that overlap on both sides, so that block boundaries are not audible.
_BLOCK_S, _MARGIN_S = 20, 1
_FFMPEG_S: Final = 120


class BadSound(ValueError):
    """The file cannot be read; the message says why."""


def read_sound(data: bytes) -> Samples:
    """Return the samples of a WAV file, or of any file that an installed ffmpeg reads. Raises: BadSound."""
    samples = _wave(data) if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE" else _by_ffmpeg(data)
    if not len(samples):
        raise BadSound("it contains no sound")
    if len(samples) > MAX_SECONDS * RATE:
        raise BadSound(f"it is longer than {MAX_SECONDS // 60} minutes")
    return samples


def _wave(data: bytes) -> Samples:
    form: tuple[int, int, int, int] | None = None
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        body = data[at + 8 : at + 8 + size]
        if name == b"fmt ":
            form = _form(body)
        elif name == b"data":
            if form is None:
                raise BadSound("its samples come before their format")
            return _samples(body, *form)
        at += 8 + size + size % 2
    raise BadSound("the WAV file has no samples")


def _form(body: bytes) -> tuple[int, int, int, int]:
    """Return coding, channels, samples per second, bits per sample."""
    if len(body) < 16:
        raise BadSound("its format is cut off")
    coding, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if coding == _EXTENSIBLE and len(body) >= 26:
        coding = int.from_bytes(body[24:26], "little")
    if not 1 <= channels <= _MAX_CHANNELS or not _MIN_RATE <= rate <= _MAX_RATE:
        raise BadSound(f"{channels} channels at {rate} samples a second are not read")
    if (coding, bits) not in {(_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32), (_FLOAT, 64)}:
        raise BadSound(f"WAV samples of coding {coding} with {bits} bits are not read; use PCM or floats")
    return coding, channels, rate, bits


def _samples(body: bytes, coding: int, channels: int, rate: int, bits: int) -> Samples:
    width = channels * bits // 8
    body = body[: len(body) // width * width]
    if len(body) // width > MAX_SECONDS * rate:
        raise BadSound(f"it is longer than {MAX_SECONDS // 60} minutes")
    flat: Any
    if coding == _FLOAT:
        flat = np.frombuffer(body, "<f4" if bits == 32 else "<f8").astype(np.float32)
        flat = np.nan_to_num(np.clip(flat, -1e3, 1e3))
    elif bits == 8:
        flat = (np.frombuffer(body, np.uint8).astype(np.float32) - 128) / 128
    elif bits == 24:
        three = np.frombuffer(body, np.uint8).reshape(-1, 3).astype(np.int32)
        flat = ((three[:, 0] << 8 | three[:, 1] << 16 | three[:, 2] << 24) >> 8).astype(np.float32) / (1 << 23)
    else:
        flat = np.frombuffer(body, f"<i{bits // 8}").astype(np.float32) / (1 << (bits - 1))
    return resampled(flat.reshape(-1, channels).mean(axis=1, dtype=np.float32), rate)


def resampled(samples: Samples, rate: int) -> Samples:
    """Resample to 16 kHz, without frequencies above 8 kHz, by the spectrum of each block."""
    if rate == RATE or not len(samples):
        return samples
    whole = math.gcd(rate, RATE)
    unit = rate // whole  # blocks of this length have an integer number of samples at both rates
    block = max(1, _BLOCK_S * rate // unit) * unit
    margin = max(1, _MARGIN_S * rate // unit) * unit
    out = []
    for start in range(0, len(samples), block):
        before = min(margin, start)
        block_samples = samples[start - before : start + block + margin]
        padding = -len(block_samples) % unit
        block_samples = np.pad(block_samples, (0, padding))
        size = len(block_samples) // unit * (RATE // whole)
        spectrum = np.fft.rfft(block_samples)
        bins = size // 2 + 1
        resized = np.zeros(bins, spectrum.dtype)
        resized[: min(bins, len(spectrum))] = spectrum[:bins]
        samples_out = np.fft.irfft(resized, size) * (size / len(block_samples))
        first = before // unit * (RATE // whole)
        count = min(block, len(samples) - start) * RATE // rate
        out.append(samples_out[first : first + count].astype(np.float32))
    return np.concatenate(out)


def _by_ffmpeg(data: bytes) -> Samples:
    program = installed_program("ffmpeg")
    if program is None:
        raise BadSound("only WAV files are read here; install ffmpeg for other kinds, or convert it")
    command = [program, "-nostdin", "-v", "error", "-protocol_whitelist", "pipe", "-i", "pipe:0", "-map", "0:a:0"]
    command += ["-t", str(MAX_SECONDS + 1), "-ac", "1", "-ar", str(RATE), "-f", "f32le", "pipe:1"]
    environment = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=_FFMPEG_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise BadSound(f"ffmpeg did not read it in {_FFMPEG_S} s") from None
    except OSError as error:
        raise BadSound(f"ffmpeg could not be started: {error.strerror}") from error
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it gave no reason"]
        raise BadSound(f"ffmpeg cannot read it: {last[0][:200]}")
    return np.frombuffer(done.stdout[: len(done.stdout) // 4 * 4], "<f4").astype(np.float32)
