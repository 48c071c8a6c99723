"""Converts a GGUF file to a folder for ONNX Runtime GenAI."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from devices.atomic_file import unfinished
from quantize.errors import DiskFull, InvalidOption
from quantize.files.gguf_split import GgufModel, read_gguf_model
from quantize.files.sampling_keys import GENERATION_CONFIG_NAMES, from_gguf
from quantize.onnx import encoder
from quantize.onnx.decoder import DecoderGraph, DecoderShape, decoder_shape
from quantize.onnx.fixed_folder import DATA, write_fixed
from quantize.onnx.graph import GraphWriter
from quantize.onnx.request import FAST, Converted, FixedOptions, OnnxRequest
from quantize.onnx.tokenizer import end_tokens, tokenizer_config, tokenizer_json

GRAPH_NAME: Final = "model.onnx"
DATA_NAME: Final = "model.onnx.data"
_DATA: Final = (DATA_NAME, DATA)
# Version of the output format; folders of another version are written again.
FORMAT: Final = 1
FACTS_NAME: Final = "tessera.json"
_MAX_FACTS_BYTES: Final = 1 << 20


def convert_task(request: OnnxRequest, step: Callable[[float, float, str], None]) -> Converted:
    """The conversion as a task of `quantize.child`."""
    step(0, 1, str(request.source))
    return convert_gguf(
        request.source,
        request.out,
        accuracy_level=request.accuracy_level,
        all_logits=request.all_logits,
        fixed=request.fixed,
    )


def convert_gguf(
    source: Path,
    folder: Path,
    *,
    accuracy_level: int = FAST,
    all_logits: bool = False,
    fixed: FixedOptions | None = None,
) -> Converted:
    """Convert one model. The folder appears only when it is complete.

    Call it in a child process, because the file is memory-mapped.

    Raises: InvalidOption: the folder exists. BadFile, UnsupportedModel: the file cannot be converted. DiskFull.
    """
    model = read_gguf_model(source)
    key = cache_key(model, accuracy_level, all_logits=all_logits, fixed=fixed)
    if folder.exists():
        return _existing(folder, key)
    if model.architecture == encoder.ARCHITECTURE:
        bert = encoder.encoder_shape(model)
        words = encoder.wordpiece_json(model)

        def write(partial: Path) -> tuple[str, ...]:
            return _write_encoder(model, bert, words, partial, fixed.context if fixed else None, key=key)

    else:
        shape = decoder_shape(model)
        tokenizer = tokenizer_json(model.parts[0])

        def write(partial: Path) -> tuple[str, ...]:
            if fixed is not None:
                return _write_fixed(model, shape, tokenizer, partial, fixed, key=key)
            return _write(model, shape, tokenizer, partial, accuracy_level, all_logits=all_logits, key=key)

    free = shutil.disk_usage(folder.parent).free
    if free < 2 * model.file_bytes:  # the largest cases: a small type re-quantized to 8 bits, an encoder in float32
        raise DiskFull(str(folder.parent), 2 * model.file_bytes, free)
    with unfinished(folder) as partial:
        partial.mkdir()
        notices = write(partial)
        data_bytes = max((partial / name).stat().st_size for name in _DATA if (partial / name).exists())
        partial.rename(folder)
    return Converted(folder=str(folder), architecture=model.architecture, data_bytes=data_bytes, notices=notices)


def cache_key(model: GgufModel, accuracy_level: int, *, all_logits: bool, fixed: FixedOptions | None = None) -> str:
    """A key that depends on every byte of the source, the options and the format."""
    digest = hashlib.sha256(f"{FORMAT} {accuracy_level} {all_logits}{fixed or ''}".encode())
    for part in model.parts:
        with Path(part.name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _existing(folder: Path, key: str) -> Converted:
    """The existing folder, if it was made from the same file. Raises: InvalidOption."""
    try:
        facts = json.loads((folder / FACTS_NAME).read_bytes()[:_MAX_FACTS_BYTES])
    except (OSError, ValueError):
        facts = None
    data = next((folder / name for name in _DATA if (folder / name).is_file()), None)
    if not isinstance(facts, dict) or facts.get("key") != key or data is None:
        raise InvalidOption("OUT", f"{folder} exists already; choose another name")
    return Converted(
        folder=str(folder),
        architecture=str(facts.get("architecture")),
        data_bytes=data.stat().st_size,
        notices=tuple(str(n) for n in facts.get("notices", ())),
        cached=True,
    )


def _write(
    model: GgufModel,
    shape: DecoderShape,
    tokenizer: dict[str, Any],
    folder: Path,
    accuracy_level: int,
    *,
    all_logits: bool,
    key: str,
) -> tuple[str, ...]:
    with (folder / DATA_NAME).open("wb") as data:
        graph = GraphWriter(data, DATA_NAME)
        decoder = DecoderGraph(model, shape, graph, accuracy_level, all_logits=all_logits)
        decoder.build()
        data.flush()
        os.fsync(data.fileno())
    graph.save(folder / GRAPH_NAME)
    _write_texts(model, shape, tokenizer, folder)
    notices = tuple(
        f"{len(names)} {qtype} tensors were re-quantized to 8 bits: ONNX Runtime has no exact fast form of {qtype}."
        for qtype, names in decoder.requantized.items()
    )
    facts = {
        "key": key,
        "architecture": shape.architecture,
        "title": model.parts[0].metadata.get("general.name") or "",
        "quantization": _mix(model),
        "n_params": decoder.n_params,
        "resident_bytes": decoder.resident_bytes,
        "notices": notices,
    }
    _write_json(folder / FACTS_NAME, facts)
    return notices


def _write_texts(model: GgufModel, shape: DecoderShape, tokenizer: dict[str, Any], folder: Path) -> None:
    """Write vocabulary, special tokens, sampling and sizes."""
    head = model.parts[0]
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(head))
    sampling = from_gguf(head.metadata)
    if sampling:
        ours = {ours: theirs for theirs, ours in GENERATION_CONFIG_NAMES.items()}
        values = {ours[name]: value for name, value in sampling.items() if name in ours}
        _write_json(folder / "generation_config.json", {"do_sample": True, **values})
    _write_json(folder / "genai_config.json", genai_config(shape, _bos_id(model), end_tokens(head)))


def _write_fixed(
    model: GgufModel,
    shape: DecoderShape,
    tokenizer: dict[str, Any],
    folder: Path,
    options: FixedOptions,
    *,
    key: str,
) -> tuple[str, ...]:
    ends = end_tokens(model.parts[0])
    _write_texts(model, shape, tokenizer, folder)
    config = genai_config(replace(shape, context=options.context), _bos_id(model), ends)
    config["model"]["decoder"] |= {"filename": "decode.onnx", "prefill": {"filename": "prefill.onnx"}}
    _write_json(folder / "genai_config.json", config)
    write_fixed(model, folder, json.dumps(tokenizer), ends, past=options.context, bits=options.bits)
    sizes = f"Weights have {options.bits} bits and one scale a row, activations 16 bits, keys and values 8"
    notices = (f"{sizes}; {options.context} tokens fit.",)
    facts = {
        "key": key,
        "architecture": shape.architecture,
        "title": model.parts[0].metadata.get("general.name") or "",
        "quantization": f"W{options.bits}A16",
        "n_params": sum(t.num_values for _, t in model.tensors()),
        "fixed": True,
        "notices": notices,
    }
    _write_json(folder / FACTS_NAME, facts)
    return notices


def _write_encoder(
    model: GgufModel,
    shape: encoder.EncoderShape,
    words: dict[str, Any],
    folder: Path,
    tokens: int | None,
    *,
    key: str,
) -> tuple[str, ...]:
    tokens = min(tokens, shape.context) if tokens else None
    with (folder / DATA_NAME).open("wb") as data:
        graph = GraphWriter(data, DATA_NAME)
        built = encoder.EncoderGraph(model, shape, graph, tokens)
        built.build()
        data.flush()
        os.fsync(data.fileno())
    graph.save(folder / GRAPH_NAME)
    _write_json(folder / "tokenizer.json", words)
    _write_json(folder / "config.json", encoder.encoder_config(shape, len(words["model"]["vocab"])))
    notices = (
        (f"A text has at most {tokens} tokens, and always takes as long as one of that length.",) if tokens else ()
    )
    (folder / "1_Pooling").mkdir()
    _write_json(folder / "1_Pooling" / "config.json", encoder.pooling_config(shape))
    facts = {
        "key": key,
        "architecture": model.architecture,
        "title": model.parts[0].metadata.get("general.name") or "",
        "quantization": "F32",
        "n_params": built.n_params,
        "notices": notices,
    }
    _write_json(folder / FACTS_NAME, facts)
    return notices


def _mix(model: GgufModel) -> str:
    """The type with most of the weights."""
    sizes: dict[str, int] = {}
    for _, tensor in model.tensors():
        sizes[tensor.ggml_type.name] = sizes.get(tensor.ggml_type.name, 0) + tensor.nbytes
    return max(sizes, key=lambda name: sizes[name], default="")


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


def _bos_id(model: GgufModel) -> int:
    value = model.metadata.get("tokenizer.ggml.bos_token_id")
    return value if isinstance(value, int) else 0


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
