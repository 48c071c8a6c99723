"""Child process: compares long texts and long answers on a device with the CPU, at the lowest priority.

Usage: python -m engine.runner.llama.deep_check_child PARENT_PID SETTINGS_JSON DEPTH. Prints one JSON line. A first
load compares short texts only. Some drivers fail only after a thousand tokens or more, beyond a sliding window, or
in answers after a hundred tokens. So the device reads DEPTH tokens in the server's batches, then single tokens and
a few at once, and it continues a text by itself. The CPU's plain kernels compute the same texts in pieces.
"""

import os
import sys
from typing import Any, Final

import msgspec
import numpy as np

from devices.child_command import write_answer
from devices.msgspec_lock import learned
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.device_check import Reference, compare_rows, log_softmax, prompts, reference_of
from engine.runner.llama.native.llama_api import KernelsMissing, start_backends
from engine.runner.llama.native.model import LoadedModel, LoadFailed, load, padded
from engine.runner.llama.native.scenarios import NOISES, WRONG_NATS
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.recompute_child import LOWEST_PRIORITY
from engine.runner.llama.reference_child import reference_settings
from engine.runner.orphans import die_with_parent
from engine.runner.protocol import LoadSettings

PROMPT: Final = 40
STEPS: Final = 150
# Rows after the long text: single tokens, then a few at once, as drafts are verified.
SINGLE: Final = 6
TOGETHER: Final = 4
# The marks of the long text whose results are compared; llama.cpp permits 17 outputs of a sequence in a batch.
MARKS: Final = 16
PIECE: Final = 256
NAMES: Final = ("an answer of 150 tokens", "a long text and what follows")


class Computer:
    """Computes texts with a loaded model, in batches of at most `piece` tokens."""

    def __init__(self, loaded: LoadedModel, piece: int) -> None:
        self._loaded, self._piece = loaded, min(piece, loaded.n_batch)
        self._batch, self._logits = Batch(loaded), Logits(loaded)

    def clear(self) -> None:
        """Empty the cache."""
        self._loaded.api.llama_memory_clear(self._loaded.memory, True)

    def answer(self, prompt: list[int]) -> tuple[list[int], list[Any]]:
        """The tokens of an answer whose most likely token is always taken, and the rows they were taken from."""
        self._batch.add_prompt(prompt, 0, 0, last=True)
        tokens, rows = list(prompt), self._decoded()
        for _ in range(STEPS):
            tokens.append(int(rows[-1].argmax()))
            self._batch.add(tokens[-1], len(tokens) - 1, 0)
            rows += self._decoded()
        return tokens, rows

    def read(self, text: list[int], outputs: frozenset[int], start: int = 0, piece: int = 0) -> list[Any]:
        """The rows of a text from `start` on, at the positions of `outputs`."""
        rows: list[Any] = []
        for at in range(start, len(text)):
            if at in outputs:
                self._batch.add(text[at], at, 0)
            else:
                self._batch.add_prompt(text[at : at + 1], at, 0, last=False)
            full = self._batch.size >= (piece or self._piece) or self._batch.outputs == self._batch.max_outputs
            if full or at == len(text) - 1:
                rows += self._decoded()
        return rows

    def _decoded(self) -> list[Any]:
        size, count = self._batch.size, self._batch.outputs
        code = self._batch.decode()
        self._batch.clear()
        if code != 0:
            raise ValueError(f"a batch of {size} tokens could not be decoded (llama_decode returned {code})")
        return [log_softmax(row) for row in self._logits.rows(count)[:count]] if count else []


def on_device(computer: Computer, tokens: list[int], depth: int) -> tuple[list[list[int]], list[Reference]]:
    """The texts, and the device's results for them."""
    answer, rows = computer.answer(tokens[:PROMPT])
    computer.clear()
    text = [tokens[i * 7 % len(tokens)] for i in range(depth + SINGLE + TOGETHER)]
    deep = computer.read(text[:depth], marks(depth))
    single = frozenset(range(depth, depth + SINGLE))
    deep += computer.read(text[: depth + SINGLE], single, depth, piece=1)
    deep += computer.read(text, frozenset(range(depth + SINGLE, len(text))), depth + SINGLE)
    return [answer, text], [reference_of(np.stack(rows)), reference_of(np.stack(deep))]


def on_cpu(computer: Computer, texts: list[list[int]], depth: int) -> list[Any]:
    """The CPU's results for the same texts, each in pieces."""
    answer, text = texts
    answered = computer.read(answer, frozenset(range(PROMPT - 1, len(answer))))
    computer.clear()
    return [np.stack(answered), np.stack(computer.read(text, marks(depth) | frozenset(range(depth, len(text)))))]


def marks(depth: int) -> frozenset[int]:
    """The compared positions of the long text, the last one of which is its end."""
    return frozenset(depth * (i + 1) // MARKS - 1 for i in range(MARKS))


def compared(settings: LoadSettings, depth: int) -> dict[str, object]:
    """The comparisons made, and the first text that differs. Raises: KernelsMissing, LoadFailed, ValueError."""
    cells = padded(depth + SINGLE + TOGETHER + 1)
    plain = reference_settings(settings)
    small: dict[str, object] = {"n_ctx": cells, "kv_cells": 0, "n_parallel": 1, "max_rollback": 0}
    small |= {"mtp": False, "draft_path": None, "mmproj_path": None, "lora": (), "reference_path": None}
    api = start_backends(settings.devices, tiles=settings.tiles, variables=settings.variables)
    loaded = load(api, msgspec.structs.replace(settings, **small), lambda _fraction: True)
    try:
        tokens = [t for sequence in prompts(loaded, LlamaVocabulary(api, loaded.vocab)) for t in sequence]
        texts, references = on_device(Computer(loaded, loaded.n_batch), tokens, depth)
    except ValueError as error:  # not a number, or a batch that it cannot decode
        return {"done": NAMES, "wrong": NAMES[1], "reason": str(error)}
    finally:
        loaded.close()
    small |= {"n_batch": min(PIECE, cells), "n_ubatch": min(PIECE, cells)}
    small |= {"n_threads": settings.n_threads, "n_threads_batch": settings.n_threads_batch}
    right = _on_plain(api, msgspec.structs.replace(plain, **small), texts, depth)
    checks = [compare_rows(expected, rows) for expected, rows in zip(references, right, strict=True)]
    if all(check.kld_mean <= WRONG_NATS for check in checks):
        return {"done": NAMES, "nats": max(check.kld_mean for check in checks)}
    # How much the order of additions matters for this model, measured with the CPU's other attention and without a
    # quantized cache.
    other = {**small, "flash_attn": "off", "type_k": "f16", "type_v": "f16"}
    again = _on_plain(api, msgspec.structs.replace(plain, **other), texts, depth)
    for name, expected, check, first, second in zip(NAMES, references, checks, right, again, strict=True):
        noise = compare_rows(reference_of(first), second).kld_mean
        nats = min(check.kld_mean, compare_rows(expected, second).kld_mean)
        if not nats <= max(WRONG_NATS, NOISES * noise):
            return {"done": NAMES, "wrong": name, "nats": check.kld_mean, "check": msgspec.to_builtins(check)}
    return {"done": NAMES, "nats": max(check.kld_mean for check in checks)}


def _on_plain(api: Any, settings: LoadSettings, texts: list[list[int]], depth: int) -> list[Any]:
    loaded = load(api, settings, lambda _fraction: True)
    try:
        return on_cpu(Computer(loaded, PIECE), texts, depth)
    finally:
        loaded.close()


def main() -> int:
    """Print the result; a device that cannot decode is wrong, too."""
    die_with_parent(int(sys.argv[1]))
    if hasattr(os, "nice"):
        os.nice(LOWEST_PRIORITY)
    try:
        settings = msgspec.json.decode(sys.argv[2].encode(), type=learned(LoadSettings))
        write_answer(compared(settings, int(sys.argv[3])))
    except (KernelsMissing, LoadFailed, msgspec.DecodeError, ValueError) as error:
        write_answer({"error": str(error)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
