"""Where somebody speaks: Silero's detector, and pieces that a transcriber can take."""

from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.runner.onnx.speech.audio import RATE, Samples
from engine.runner.onnx_libraries import onnxruntime

# Source: silero-vad 6.2, utils_vad.py: windows of 512 samples behind the last 64 of the one before, at 16 kHz;
# speech begins above .5 and ends below .35.
WINDOW, _CONTEXT = 512, 64
_BEGINS, _ENDS = 0.5, 0.35
# A breath within a sentence is shorter than this; the ends of words are softer than the detector hears.
_PAUSE_S, _AROUND_S = 0.4, 0.15
_SHORTEST_S: Final = 0.2
_NEAR_S, _TOGETHER_S = 1.0, 12.0
# Moonshine was trained on pieces of up to 30 s.
LONGEST_S: Final = 24.0


class VoiceDetector:
    """Silero on one thread. Windows are judged in order, each with the state that the one before left."""

    def __init__(self, path: Path) -> None:
        ort = onnxruntime()
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._names = {one.name for one in self._session.get_inputs()}

    def probabilities(self, samples: Samples) -> list[float]:
        """How likely each window holds speech."""
        state: Any = np.zeros((2, 1, 128), np.float32)
        before = np.zeros(_CONTEXT, np.float32)
        found = []
        for start in range(0, len(samples), WINDOW):
            window = samples[start : start + WINDOW]
            window = np.pad(window, (0, WINDOW - len(window)))
            given = {"input": np.concatenate((before, window))[None], "state": state}
            if "sr" in self._names:
                given["sr"] = np.array(RATE, np.int64)
            (chance, state) = self._session.run(None, given)
            before = window[-_CONTEXT:]
            found.append(float(chance[0, 0]))
        return found


def speech(probabilities: list[float], num_samples: int, longest_s: float = LONGEST_S) -> list[tuple[int, int]]:
    """Pieces with speech as (first sample, sample behind the last), at most `longest_s` each.

    One that is longer is cut where speech is least likely in its last third.
    """
    found: list[tuple[int, int]] = []
    begun: int | None = None
    quiet = 0
    for index, chance in enumerate([*probabilities, *[0.0] * (round(_PAUSE_S * RATE / WINDOW) + 1)]):
        if begun is None:
            if chance >= _BEGINS:
                begun, quiet = index, 0
            continue
        quiet = 0 if chance >= _ENDS else quiet + 1
        if quiet * WINDOW >= _PAUSE_S * RATE:
            found += _cut(probabilities, begun, index + 1 - quiet, longest_s)
            begun = None
    around = int(_AROUND_S * RATE)
    pieces = [(first * WINDOW, last * WINDOW) for first, last in found]
    pieces = [(first, last) for first, last in pieces if last - first >= _SHORTEST_S * RATE]
    out: list[tuple[int, int]] = []
    for first, last in pieces:
        start = max(0, first - around, out[-1][1] if out else 0)
        out.append((start, min(num_samples, last + around)))
    return _joined([(first, last) for first, last in out if last > first], min(_TOGETHER_S, longest_s))


def _joined(pieces: list[tuple[int, int]], together_s: float) -> list[tuple[int, int]]:
    """Neighbours as one piece where little is between them: a word is understood by those around it."""
    out: list[tuple[int, int]] = []
    for first, last in pieces:
        near = out and first - out[-1][1] <= _NEAR_S * RATE and last - out[-1][0] <= together_s * RATE
        if near:
            out[-1] = (out[-1][0], last)
        else:
            out.append((first, last))
    return out


def _cut(probabilities: list[float], first: int, last: int, longest_s: float) -> list[tuple[int, int]]:
    """Pieces that are no longer with what is taken around them."""
    longest = int((longest_s - 2 * _AROUND_S) * RATE / WINDOW)
    out = []
    while last - first > longest:
        part = probabilities[first + 2 * longest // 3 : first + longest]
        middle = first + 2 * longest // 3 + int(np.argmin(part)) + 1
        out.append((first, middle))
        first = middle
    return [*out, (first, last)]
