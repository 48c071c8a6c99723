"""Moonshine: an audio encoder and a text decoder, both in ONNX Runtime's own format."""

import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.runner.onnx.speech.audio import RATE, Samples
from engine.runner.onnx_libraries import onnxruntime

BEGIN, END = 1, 2
# Source: Moonshine's paper and code: English speech has at most this many tokens per second; more are repetitions.
TOKENS_A_SECOND: Final = 6.5
SPARE_TOKENS: Final = 8
# Shorter audio has too few frames for the encoder's convolutions.
SHORTEST: Final = RATE // 4
_SPACE: Final = "▁".encode()
_TWO_BYTES: Final = 0x80


class BadSpeechModel(ValueError):
    """The files are not those of a Moonshine model."""


class Moonshine:
    """One model. Both graphs use `threads` threads."""

    def __init__(self, folder: Path, threads: int) -> None:
        ort = onnxruntime()
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self._encoder = self._session(ort, folder / "encoder_model.ort", options)
        self._decoder = self._session(ort, folder / "decoder_model_merged.ort", options)
        self._pieces = read_pieces((folder / "tokenizer.bin").read_bytes())
        self._outputs = [one.name for one in self._decoder.get_outputs()]
        self._past = [one for one in self._decoder.get_inputs() if one.name.startswith("past_key_values")]

    @staticmethod
    def _session(ort: Any, path: Path, options: Any) -> Any:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def transcribe(self, samples: Samples) -> tuple[str, list[int], float]:
        """Return the text of one speech segment, its tokens, and the mean of their log probabilities."""
        if len(samples) < SHORTEST:
            samples = np.pad(samples, (0, SHORTEST - len(samples)))
        attention_mask = np.ones((1, len(samples)), np.int64)
        (hidden,) = self._encoder.run(None, {"input_values": samples[None], "attention_mask": attention_mask})
        past = {one.name: np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32) for one in self._past}
        tokens: list[int] = []
        total = 0.0
        last, most = BEGIN, math.ceil(len(samples) / RATE * TOKENS_A_SECOND) + SPARE_TOKENS
        while len(tokens) < most:
            inputs = {
                "input_ids": np.array([[last]], np.int64),
                "encoder_hidden_states": hidden,
                "encoder_attention_mask": attention_mask,
                "use_cache_branch": np.array([bool(tokens)]),
                **past,
            }
            results = dict(zip(self._outputs, self._decoder.run(None, inputs), strict=True))
            last, chance = log_probability(results["logits"][0, -1])
            total += chance
            if last == END:
                break
            for name in past:
                if not tokens or ".encoder." not in name:  # later steps leave the encoder's part empty
                    past[name] = results[name.replace("past_key_values", "present")]
            tokens.append(last)
        return words(self._pieces, tokens), tokens, total / max(1, len(tokens))


def log_probability(logits: Any) -> tuple[int, float]:
    """Return the most likely token and its log probability."""
    values = logits.astype(np.float64)
    last = int(values.argmax())
    return last, -float(np.log(np.exp(values - values[last]).sum()))


def words(pieces: list[bytes], tokens: list[int]) -> str:
    """Return tokens as text."""
    joined = b"".join(pieces[token] for token in tokens if END < token < len(pieces))
    return joined.replace(_SPACE, b" ").decode("utf-8", "replace").strip()


def read_pieces(data: bytes) -> list[bytes]:
    """Read the vocabulary of `tokenizer.bin`: each piece follows its length, of one byte or, from 128 on, of two.

    Source: bin-tokenizer.cpp of Moonshine. Raises: BadSpeechModel.
    """
    pieces, at = [], 0
    while at < len(data):
        size = data[at]
        at += 1
        if size >= _TWO_BYTES:
            if at == len(data):
                raise BadSpeechModel("the vocabulary is cut off")
            size = data[at] * _TWO_BYTES + size - _TWO_BYTES
            at += 1
        if at + size > len(data):
            raise BadSpeechModel("the vocabulary is cut off")
        pieces.append(data[at : at + size])
        at += size
    return pieces
