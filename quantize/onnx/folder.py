"""A GGUF file to a folder that ONNX Runtime GenAI loads."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quantize.errors import BadWish, DiskFull
from quantize.gguf_split import GgufModel, read_gguf_model
from quantize.onnx.decoder import DecoderGraph, DecoderShape, decoder_shape
from quantize.onnx.graph import GraphWriter
from quantize.onnx.tokenizer import end_tokens, tokenizer_config, tokenizer_json

GRAPH_NAME: Final = "model.onnx"
DATA_NAME: Final = "model.onnx.data"
# MatMulNBits with activations in 8 bits, as llama.cpp computes; 0 keeps them in float32 and is slower.
# Source: ONNX Runtime, ContribOperators.md, MatMulNBits.
FAST: Final = 4
EXACT: Final = 0


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written. `notices` say, for people, what is not exactly as in the source."""

    folder: Path
    architecture: str
    data_bytes: int
    notices: tuple[str, ...]


def convert_gguf(source: Path, folder: Path, *, accuracy_level: int = FAST) -> Converted:
    """Convert one model. The folder appears only when it is whole. Call in a child process: the file is mapped.

    Raises: BadWish: the folder exists. BadFile, UnsupportedModel: the file cannot be converted. DiskFull.
    """
    if folder.exists():
        raise BadWish("OUT", f"{folder} exists already; choose another name")
    model = read_gguf_model(source)
    shape = decoder_shape(model)
    tokenizer = tokenizer_json(model.parts[0])
    free = shutil.disk_usage(folder.parent).free
    if free < 2 * model.file_bytes:  # the widest: a small type re-quantized to eight bits
        raise DiskFull(str(folder.parent), 2 * model.file_bytes, free)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.onnx.partial")
    partial.mkdir()
    try:
        notices = _write(model, shape, tokenizer, partial, accuracy_level)
        data_bytes = (partial / DATA_NAME).stat().st_size
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Converted(folder, shape.architecture, data_bytes, notices)


def _write(
    model: GgufModel, shape: DecoderShape, tokenizer: dict[str, Any], folder: Path, accuracy_level: int
) -> tuple[str, ...]:
    with (folder / DATA_NAME).open("wb") as data:
        graph = GraphWriter(data, DATA_NAME)
        decoder = DecoderGraph(model, shape, graph, accuracy_level)
        decoder.build()
        data.flush()
        os.fsync(data.fileno())
    graph.save(folder / GRAPH_NAME)
    head = model.parts[0]
    config = tokenizer_config(head)
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(folder / "tokenizer_config.json", config)
    _write_json(folder / "genai_config.json", genai_config(shape, _id(model, "bos"), end_tokens(head)))
    return tuple(
        f"{len(names)} {qtype} tensors were re-quantized to 8 bits: ONNX Runtime has no exact fast form of {qtype}."
        for qtype, names in decoder.requantized.items()
    )


def genai_config(shape: DecoderShape, bos: int, ends: list[int]) -> dict[str, Any]:
    """The content of `genai_config.json`. Source of the fields: ONNX Runtime GenAI, config reference."""
    return {
        "model": {
            "type": shape.architecture,
            "bos_token_id": bos,
            "eos_token_id": ends or [bos],
            "pad_token_id": (ends or [bos])[0],
            "context_length": shape.context,
            "vocab_size": shape.vocab,
            "decoder": {
                "session_options": {"log_id": "tessera", "provider_options": []},
                "filename": GRAPH_NAME,
                "head_size": shape.head_dim,
                "hidden_size": shape.embd,
                "num_attention_heads": shape.heads,
                "num_key_value_heads": shape.kv_heads,
                "num_hidden_layers": shape.layers,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {"max_length": shape.context, "past_present_share_buffer": True, "do_sample": False},
    }


def _id(model: GgufModel, name: str) -> int:
    value = model.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return value if isinstance(value, int) else 0


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
