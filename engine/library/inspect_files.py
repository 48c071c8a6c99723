"""Reads model details with the bounded readers only: no native code, no imports from a model's folder."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from devices.errors import TesseraError
from engine.core.hf_folder import chat_template, read_json, text
from engine.library import model_ids
from engine.library.types import Details
from engine.onnx.folder import read_folder
from quantize.files.gguf_file import GgufFile, TensorInfo
from quantize.files.header_cache import cached_gguf_model
from quantize.files.safetensors_file import links_root, read_safetensors_folder, safe_member
from quantize.files.sampling_keys import GENERATION_CONFIG_NAMES, checked, from_gguf

GENERATION_CONFIG = "generation_config.json"
_LONGEST_MIX = 20


def inspect_gguf(path: Path) -> Details:
    """Details of a GGUF model (all parts of a split one). Raises: TesseraError."""
    model = cached_gguf_model(path)
    details = gguf_details(model.parts[0], [tensor for _, tensor in model.tensors()])
    return msgspec.structs.replace(details, publisher_sampling=_published(path.parent, links_root(path.parent)))


def gguf_details(head: GgufFile, tensors: list[TensorInfo]) -> Details:
    """Details from the header of the first part and the tensors of all parts."""
    type_bytes: Counter[str] = Counter()
    for tensor in tensors:
        type_bytes[tensor.ggml_type.name] += tensor.nbytes
    metadata = head.metadata
    is_projector = head.architecture == "clip"
    return Details(
        architecture=head.architecture,
        title=text(metadata.get("general.name")) or "",
        n_params=sum(tensor.num_values for tensor in tensors),
        context_train=head.arch_int("context_length") or 0,
        quantization=model_ids.from_header(metadata.get("general.file_type"), type_bytes),
        type_bytes=dict(type_bytes),
        chat_template=text(metadata.get("tokenizer.chat_template")),
        capabilities=() if is_projector else capabilities_of(metadata, (t.name for t in tensors)),
        license=text(metadata.get("general.license")),
        is_projector=is_projector,
        sampling=from_gguf(metadata),
    )


def _published(folder: Path, root: Path) -> dict[str, float | int]:
    """The sampling settings that the publisher recommends in this folder's generation_config.json."""
    try:
        path = safe_member(folder, GENERATION_CONFIG, root)
        return checked(read_json(path), GENERATION_CONFIG_NAMES) if path.is_file() else {}
    except TesseraError:
        return {}  # a broken file recommends nothing


def inspect_safetensors(folder: Path) -> Details:
    """Details of a Hugging Face folder. Raises: TesseraError."""
    root = links_root(folder)
    config = read_json(safe_member(folder, "config.json", root))
    model = read_safetensors_folder(folder, root)
    tensors = [tensor for file in model.files for tensor in file.tensors]
    type_bytes: Counter[str] = Counter()
    for tensor in tensors:
        type_bytes[tensor.dtype] += tensor.nbytes
    inner = config.get("text_config")
    text_config = inner if isinstance(inner, dict) else config
    template = chat_template(folder, root)
    architectures = config.get("architectures")
    context = text_config.get("max_position_embeddings")
    capabilities = ["completion", *from_template(template)]
    if "vision_config" in config:
        capabilities.append("vision")
    return Details(
        architecture=_first_text(architectures) or text(config.get("model_type")) or "",
        title=text(config.get("_name_or_path")) or "",
        n_params=sum(tensor.num_values for tensor in tensors),
        context_train=context if isinstance(context, int) and not isinstance(context, bool) else 0,
        quantization=model_ids.from_header(None, type_bytes),
        type_bytes=dict(type_bytes),
        chat_template=template,
        capabilities=tuple(capabilities),
        publisher_sampling=_published(folder, root),
    )


def inspect_onnx(folder: Path) -> Details:
    """Details of an ONNX folder; the graphs are checked only when the model runs.

    Raises: TesseraError: the folder needs to run code, refers to files outside itself, or is broken.
    """
    model_folder = read_folder(folder)
    own = model_folder.own
    n_params, mix = own.get("n_params"), own.get("quantization")
    can = (
        ("completion", *from_template(model_folder.template))
        if model_folder.kind == "generate"
        else (model_folder.kind,)
    )
    return Details(
        architecture=model_folder.architecture,
        title=str(own.get("title") or ""),
        n_params=n_params if isinstance(n_params, int) and 0 < n_params < 1 << 50 else 0,
        context_train=model_folder.context,
        quantization=f"ONNX {mix}" if isinstance(mix, str) and len(mix) <= _LONGEST_MIX else "ONNX",
        chat_template=model_folder.template,
        capabilities=can,
        publisher_sampling=_published(folder, links_root(folder)),
    )


def _first_text(values: object) -> str | None:
    return next((v for v in values if isinstance(v, str)), None) if isinstance(values, Iterable) else None


# Capabilities of a model, read from its header. Only what the file proves is reported.

# Encoder-only architectures. Source: llama.cpp's llm_arch names whose models have no causal head.
_ENCODERS = frozenset({
    "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert",
    "gemma-embedding", "t5encoder", "llama-embed",
})  # fmt: skip
_POOLING_RANK = 4  # llama.h, LLAMA_POOLING_TYPE_RANK
_THINK_MARKS = ("<think>", "enable_thinking", "reasoning_content", "reasoning_effort", "<|channel|>")


def capabilities_of(metadata: Mapping[str, object], tensor_names: Iterable[str]) -> tuple[str, ...]:
    """Capabilities of a GGUF model, from its metadata and tensor names."""
    architecture = metadata.get("general.architecture", "")
    pooling = metadata.get(f"{architecture}.pooling_type")
    names = set(tensor_names)
    if pooling == _POOLING_RANK or {"cls.weight", "cls.output.weight"} & names:
        return ("rerank",)
    if architecture in _ENCODERS or (isinstance(pooling, int) and pooling > 0):
        return ("embedding",)
    capabilities = ["completion", *from_template(metadata.get("tokenizer.chat_template"))]
    if any(metadata.get(f"tokenizer.ggml.{k}_token_id") is not None for k in ("fim_pre", "prefix")):
        capabilities.append("fim")
    return tuple(capabilities)


def from_template(template: object) -> tuple[str, ...]:
    """The capabilities "chat", "tools" and "reasoning", as far as the chat template supports them."""
    if not isinstance(template, str) or not template.strip():
        return ()
    capabilities = ["chat"]
    if "tools" in template or "tool_calls" in template:
        capabilities.append("tools")
    if any(mark in template for mark in _THINK_MARKS):
        capabilities.append("reasoning")
    return tuple(capabilities)
