"""A GGUF decoder as a folder of fixed-shape graphs: `prefill.onnx` and `decode.onnx` over one file of weights.

The last token of a prompt goes through `decode.onnx`, so `prefill.onnx` has no head. `fixed.json` holds the sizes
and the scales of all that goes in and out; `embedding.bin` the rows of the tokens in float16; `first.bin` the codes
of the first token's keys and values.
"""

import os
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from tokenizers import Tokenizer

from quantize.calibration_texts import CALIBRATION
from quantize.errors import InvalidOption, UnsupportedModel
from quantize.files.gguf_split import GgufModel
from quantize.onnx.decoder import DecoderShape, decoder_shape
from quantize.onnx.fixed_graph import FixedGraph, Scale, scale_of
from quantize.onnx.fixed_numbers import calibrate
from quantize.onnx.graph import GraphWriter
from quantize.onnx.static_shapes import FixedShape, FixedWeights

FACTS: Final = "fixed.json"
DATA: Final = "fixed.onnx.data"
GRAPHS: Final = ("prefill", "decode")
CHUNK_TOKENS: Final = 64
# RMSNormalization is an operator of its own from this opset on.
OPSET: Final = 23
# Enough for the ranges of activations: sequences and their tokens.
_SEQUENCES, _LENGTH = 6, 128


class FixedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the runner needs beside the graphs. `past` cells are cached, the first of them for the token `begin`."""

    format: int = 1
    architecture: str
    piece: int
    past: int
    layers: int
    embd: int
    vocab: int
    kv_heads: int
    head_dim: int
    group: int
    begin: int
    ends: tuple[int, ...]
    bits: int
    scales: dict[str, Scale]


def write_fixed(
    model: GgufModel, folder: Path, tokenizer_json: str, ends: list[int], *, past: int = 512, bits: int = 8
) -> FixedFacts:
    """Write the graphs and what belongs to them into `folder`, which exists.

    Raises: UnsupportedModel: a part of the model has no fixed form here. InvalidOption: `past` or `bits`. BadFile.
    """
    shape = decoder_shape(model)
    if bits not in (4, 8):
        raise InvalidOption("--bits", f"{bits} is neither 4 nor 8")
    if not CHUNK_TOKENS <= past <= shape.context:
        raise InvalidOption(
            "--context", f"{past} tokens is not between {CHUNK_TOKENS} and the model's {shape.context}"
        )
    weights = FixedWeights(model, shape)
    # A family without a token that begins a text (some of Qwen's files) separates texts by the one that ends them.
    ending = model.metadata.get("tokenizer.ggml.eos_token_id")
    begin = model.metadata.get("tokenizer.ggml.bos_token_id", ending)
    if not isinstance(begin, int) or not 0 <= begin < shape.vocab:
        raise UnsupportedModel(model.parts[0].name, "it names no token that a text begins with")
    ids = Tokenizer.from_str(tokenizer_json).encode(_text(), add_special_tokens=False).ids
    spread = max(1, (len(ids) - _LENGTH) // _SEQUENCES)
    sequences = [ids[i * spread : i * spread + _LENGTH] for i in range(_SEQUENCES)]
    ranges, first = calibrate(weights, FixedShape(shape, CHUNK_TOKENS, past, head=True), begin, sequences)
    scales: dict[str, Scale] = {}
    with (folder / DATA).open("wb") as data:
        before: GraphWriter | None = None
        for name, tokens in zip(GRAPHS, (CHUNK_TOKENS, 1), strict=True):
            graph = GraphWriter(data, DATA, OPSET, before)
            at = FixedShape(shape, tokens, past, head=name == "decode")
            built = FixedGraph(graph, weights, ranges, at, bits)
            built.build()
            data.flush()
            graph.save(folder / f"{name}.onnx")
            scales |= built.scales
            before = graph
        os.fsync(data.fileno())
    weights.get("token_embd.weight").astype(np.float16).tofile(folder / "embedding.bin")
    with (folder / "first.bin").open("wb") as file:
        for layer in range(shape.layers):
            for which in ("key", "value"):
                name = f"blk.{layer}.{which}s"
                file.write(scale_of(ranges[name], "uint8").codes(first[name]).tobytes())
    facts = _facts(shape, past, begin, ends, bits, scales)
    (folder / FACTS).write_bytes(msgspec.json.encode(facts))
    return facts


def _text() -> str:
    return CALIBRATION.read_text(encoding="utf-8")


def _facts(
    shape: DecoderShape, past: int, begin: int, ends: list[int], bits: int, scales: dict[str, Scale]
) -> FixedFacts:
    return FixedFacts(
        architecture=shape.architecture, piece=CHUNK_TOKENS, past=past, layers=shape.layers, embd=shape.embd,
        vocab=shape.vocab, kv_heads=shape.kv_heads, head_dim=shape.head_dim, group=shape.heads // shape.kv_heads,
        begin=begin, ends=tuple(ends), bits=bits, scales=scales,
    )  # fmt: skip
