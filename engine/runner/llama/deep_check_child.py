"""Child process: compares long texts, long answers and images on a device with the CPU, at the lowest priority.

Usage: python -m engine.runner.llama.deep_check_child PARENT_PID SETTINGS_JSON DEPTH. Prints one JSON line. A first
load compares short texts only. Some drivers fail only after a thousand tokens or more, beyond a sliding window, or
in answers after a hundred tokens. So the device reads DEPTH tokens in the server's batches, then single tokens and
a few at once, and it continues a text by itself. The CPU's plain kernels compute the same texts in pieces.
Matrix products of each type of tensor are compared one by one, with one row and with 128. The scenarios of a first
load, which are limited in time there, are computed to their end.
"""

import os
import struct
import sys
import zlib
from typing import Any, Final

import msgspec
import numpy as np

from devices.backends import openvino
from devices.child_command import write_answer
from devices.msgspec_lock import learned
from engine.core.types import GenerationRequest, Image
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.device_check import (
    SURE_NATS,
    Reference,
    compare_rows,
    log_softmax,
    prompts,
    reference_of,
)
from engine.runner.llama.native.device_verdict import CELLS
from engine.runner.llama.native.llama_api import KernelsMissing, start_backends
from engine.runner.llama.native.model import LoadedModel, LoadFailed, load, padded, watched_context
from engine.runner.llama.native.operation_check import SINGLE_TOKENS, OperationCheck, wrong_text
from engine.runner.llama.native.scenarios import NOISES, WIDEST, WRONG_NATS, Scenarios
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.recompute_child import LOWEST_PRIORITY
from engine.runner.llama.reference_child import compute, reference_settings
from engine.runner.llama.vision.image import ImageRefused
from engine.runner.llama.vision.vision import Vision
from engine.runner.load_limits import exact_settings
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
BATCHES: Final = "batches of several texts"
PRODUCTS: Final = "matrix products"
IMAGE: Final = "an image"
# Rows of a prompt in the comparison of products, and the error that no sound kernel has: ggml's tests allow 5e-4,
# public faults begin at 0.2.
PRODUCT_ROWS: Final = 128
PRODUCTS_S: Final = 120.0
WRONG_PRODUCT: Final = 0.01
MATRIX_PRODUCTS: Final = ("MUL_MAT", "MUL_MAT_ID")
# llama.h, enum llama_token_attr: unknown, unused and control tokens.
RESERVED_ATTRIBUTES: Final = 1 | 2 | 8
# A square with colours in both directions, large enough for several patches of any encoder.
IMAGE_SIDE: Final = 224


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

    def text_rows(self, text: list[int], position: int) -> list[Any]:
        """The rows of a short text that continues what the cache has, for each of its last tokens."""
        first = max(0, len(text) - MARKS)
        if first:
            self._batch.add_prompt(text[:first], position, 0, last=False)
        for at in range(first, len(text)):
            self._batch.add(text[at], position + at, 0)
        return self._decoded()

    def _decoded(self) -> list[Any]:
        size, count = self._batch.size, self._batch.outputs
        code = self._batch.decode()
        self._batch.clear()
        if code != 0:
            raise ValueError(f"a batch of {size} tokens could not be decoded (llama_decode returned {code})")
        return [log_softmax(row) for row in self._logits.rows(count)[:count]] if count else []


def reserved_indices(loaded: LoadedModel, vocabulary: LlamaVocabulary, tokens: list[int]) -> list[int]:
    """The indices of unknown, unused and control tokens, except those that end an answer."""
    attribute, vocab = loaded.api.llama_vocab_get_attr, loaded.vocab
    reserved = (i for i, token in enumerate(tokens) if attribute(vocab, token) & RESERVED_ATTRIBUTES)
    return [i for i in reserved if tokens[i] not in vocabulary.ends]


def num_wrongly_reserved(indices: list[int], tokens: list[int], rows: Any) -> int:
    """At how many of these indices of an answer the CPU is sure of another token; `rows`: (tokens, n_vocab)."""
    number = 0
    for index in indices:
        second, first = np.sort(rows[index])[-2:]
        number += bool(first - second > SURE_NATS and rows[index].argmax() != tokens[index])
    return number


def products(loaded: LoadedModel, tokens: list[int]) -> str:
    """The kinds of matrix products that differ from the CPU's, as text; empty: none, or they were not compared."""
    if openvino.target_of(loaded.settings.devices):  # it compiles whole graphs
        return ""
    text = [tokens[i % len(tokens)] for i in range(PRODUCT_ROWS + SINGLE_TOKENS)]
    try:
        check = OperationCheck(loaded.api)
        try:
            watched = watched_context(loaded, min(CELLS, loaded.n_ctx), check.callback)
            try:
                compared_operations = check.compare(watched, text, PRODUCTS_S, PRODUCT_ROWS)
            finally:
                loaded.api.llama_free(watched.context)
        finally:
            check.close()
    except (KernelsMissing, LoadFailed, ValueError, AttributeError) as error:
        sys.stderr.write(f"the device's products were not compared: {error}\n")
        return ""
    return wrong_text(
        [o for o in compared_operations if o.kind in MATRIX_PRODUCTS and not o.error <= WRONG_PRODUCT]
    )


def batches(
    loaded: LoadedModel, tokens: list[int], expected: Reference | None, unquantized: Reference | None
) -> tuple[list[str], dict[str, object]]:
    """The scenarios of a first load that were compared, and fields of the result if one differs, else none.

    The long text has the server's batches already. `expected`: the CPU's results; None: nothing is compared.
    `unquantized`: those for deterministic requests, if their cache has other types.
    """
    if expected is None:
        return [], {}
    try:
        outcome = Scenarios(loaded, expected, tokens, unquantized).run(float("inf"), has_long=False)
    except ValueError as error:
        return [BATCHES], {"wrong": BATCHES, "reason": str(error)}
    wrong = outcome.wrong
    return outcome.done, {} if wrong is None else {"wrong": wrong.scenario, "nats": wrong.nats}


def sample_image() -> bytes:
    """A PNG with colours in both directions."""
    side = np.arange(IMAGE_SIDE)
    pixels = np.zeros((IMAGE_SIDE, IMAGE_SIDE, 3), np.uint8)
    pixels[:, :, 0], pixels[:, :, 1], pixels[:, :, 2] = side[None], side[:, None], (side[None] ^ side[:, None])
    data = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", IMAGE_SIDE, IMAGE_SIDE, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def image_rows(loaded: LoadedModel, projector: str) -> Any:
    """The rows after an image and some words; None if it cannot be read with these settings or this memory.

    Raises: ValueError: a batch could not be decoded, or its output is not a number.
    """
    try:
        vision = Vision(loaded, projector)
        prompt = f"Look: {vision.marker} This picture shows colours, and the first of them is"
        request = GenerationRequest(prompt=prompt, images=(Image(data=sample_image()),), max_tokens=1)
        tokens, media = vision.read(request)
    except (LoadFailed, ImageRefused) as error:
        sys.stderr.write(f"images were not compared: {error}\n")
        return None
    computer, at, rows = Computer(loaded, PIECE), 0, list[Any]()
    computer.clear()
    try:
        while at < len(tokens):
            if (span := media.at(at)) is not None:
                if (code := vision.put(span, media.position(at), 0)) != 0:
                    sys.stderr.write(f"an image was not decoded (code {code})\n")
                    return None
                at = span.end
                continue
            end = media.text_until(at, len(tokens))
            rows = computer.text_rows(tokens[at:end], media.position(at))
            at = end
    finally:
        media.close()
        computer.clear()
    return np.stack(rows)


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
    """The comparisons made, and the first text that differs. Raises: KernelsMissing, LoadFailed, ValueError.

    `in_products`: matrix products differ, which a load without flash attention computes, too.
    """
    cells = padded(depth + SINGLE + TOGETHER + 1)
    plain, projector = reference_settings(settings), settings.mmproj_path
    small: dict[str, object] = {"n_ctx": cells, "kv_cells": 0, "mtp": False, "draft_path": None}
    small |= {"mmproj_path": None, "lora": (), "reference_path": None}
    api = start_backends(settings.devices, tiles=settings.tiles, variables=settings.variables)
    is_compiled = bool(openvino.target_of(settings.devices))  # as a whole, for one text
    expected = None if is_compiled else compute(api, plain, settings.n_ctx, slow_s=float("inf"))
    exact, unquantized = exact_settings(settings), None
    if not is_compiled and (exact.type_k, exact.type_v) != (settings.type_k, settings.type_v):
        unquantized = compute(api, reference_settings(exact), settings.n_ctx, slow_s=float("inf"))
    parallel = {"n_parallel": min(WIDEST, settings.n_parallel)}
    loaded = load(api, msgspec.structs.replace(settings, **small, **parallel), lambda _fraction: True)
    try:
        vocabulary = LlamaVocabulary(api, loaded.vocab)
        tokens = [t for sequence in prompts(loaded, vocabulary) for t in sequence]
        done, wrong_batches = batches(loaded, tokens, expected, unquantized)
        texts, references = on_device(Computer(loaded, loaded.n_batch), tokens, depth)
        reserved = reserved_indices(loaded, vocabulary, texts[0][PROMPT:])
        seen = image_rows(loaded, projector) if projector is not None else None
        wrong_products = products(loaded, tokens)
    except ValueError as error:  # not a number, or a batch that it cannot decode
        return {"done": NAMES, "wrong": NAMES[1], "reason": str(error)}
    finally:
        loaded.close()
    in_products = {"in_products": True} if wrong_products else {}
    if wrong_batches:
        return {"done": done, **wrong_batches, **in_products}
    small |= {"n_parallel": 1, "max_rollback": 0}
    small |= {"n_batch": min(PIECE, cells), "n_ubatch": min(PIECE, cells)}
    small |= {"n_threads": settings.n_threads, "n_threads_batch": settings.n_threads_batch}
    right = _on_plain(api, msgspec.structs.replace(plain, **small), texts, depth, projector)
    if number := num_wrongly_reserved(reserved, texts[0][PROMPT:], right[0]):
        return {"done": NAMES, "wrong": NAMES[0], "reason": f"{number} tokens are reserved ones", **in_products}
    names = list(NAMES)
    if seen is not None and len(right) > len(names):
        names.append(IMAGE)
        references.append(reference_of(seen))
    checks = [compare_rows(expected, rows) for expected, rows in zip(references, right, strict=False)]
    verdict: dict[str, object] = {"done": [*done, *names], "nats": max(check.kld_mean for check in checks)}
    if wrong_products:
        verdict |= {"wrong": PRODUCTS, "reason": wrong_products, **in_products}
    if all(check.kld_mean <= WRONG_NATS for check in checks):
        return verdict
    # How much the order of additions matters for this model, measured with the CPU's other attention and without a
    # quantized cache.
    other = {**small, "flash_attn": "off", "type_k": "f16", "type_v": "f16"}
    again = _on_plain(api, msgspec.structs.replace(plain, **other), texts, depth, projector)
    for name, expected, check, first, second in zip(names, references, checks, right, again, strict=False):
        noise = compare_rows(reference_of(first), second).kld_mean
        nats = min(check.kld_mean, compare_rows(expected, second).kld_mean)
        if not nats <= max(WRONG_NATS, NOISES * noise):
            difference = {"nats": check.kld_mean, "check": msgspec.to_builtins(check)}
            return {"done": names, "wrong": name, **difference, **in_products}
    return verdict


def _on_plain(
    api: Any, settings: LoadSettings, texts: list[list[int]], depth: int, projector: str | None
) -> list[Any]:
    """The CPU's rows of the texts, and of the image if the model reads it."""
    loaded = load(api, settings, lambda _fraction: True)
    try:
        rows = on_cpu(Computer(loaded, PIECE), texts, depth)
        seen = image_rows(loaded, projector) if projector is not None else None
        return rows if seen is None else [*rows, seen]
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
