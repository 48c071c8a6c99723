"""Converting a Hugging Face folder: recipe, vocabulary and general facts put together, tensors streamed out."""

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np

from quantize.convert.checkpoint import Checkpoint, bf16_to_f32, f32_to_bf16, text_config
from quantize.convert.families import model_recipe
from quantize.convert.pretokenizer import choose
from quantize.convert.tensor_map import Array, OutTensor, Recipe
from quantize.convert.vocabulary import (
    Vocabulary,
    open_tokenizer,
    put_vocabulary,
    put_written,
    read_vocabulary,
)
from quantize.errors import BadFile, BadWeights
from quantize.files.gguf_file import ValueType
from quantize.files.gguf_write import GgufWriter, TensorSlot, file_bytes, header
from quantize.files.sampling_keys import GENERATION_CONFIG_NAMES, GGUF_NAMES, checked
from quantize.ggml_types import GgmlType
from quantize.measurements import Step
from quantize.types import FloatType, ModelSpec, TensorSpec

# llama.cpp's numbers for files that are mostly of one float type.
_FILE_TYPES = {GgmlType.F32: 0, GgmlType.F16: 1, GgmlType.BF16: 32}
_QUANTIZATION_VERSION = 2  # Source: ggml.h, GGML_QNT_VERSION


class ConvertRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Write the model in `folder` as GGUF to `out`, which must not exist. `root` bounds where links may lead.

    `header_only` is for `prepare`: leave the header at `out`, with a hole where the weights would be.
    `float_type` "auto" keeps BF16 and F16 as they are and makes F16 of F32 (BF16 where F16 would overflow).
    """

    folder: Path
    out: Path
    float_type: FloatType = "auto"
    root: Path | None = None
    header_only: bool = False


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """What was written; `pretokenizer` as llama.cpp calls it; `notes` tell what was left out."""

    architecture: str
    float_type: str
    file_bytes: int
    pretokenizer: str
    num_tensors: int
    notes: tuple[str, ...] = ()


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What a converted file would be: its size, and all that a plan needs to know."""

    float_type: str
    file_bytes: int
    header_bytes: int
    spec: ModelSpec


def convert(request: ConvertRequest, send: Step) -> Converted:
    """Convert a folder.

    Raises: UnsupportedModel, BadWeights (names the tensor), BadFile, IncompleteFile; OSError from writing.
    The output is left unfinished then; the caller removes it.
    """
    source = Checkpoint(request.folder, request.root)
    with _described_by(source.folder):
        recipe, pre = _complete_recipe(source)
        header(recipe.metadata, [])  # what cannot be written is noticed before the tensors are
    qtype = _float_type(source, request.float_type)
    while True:
        try:
            size = _write(source, recipe, qtype, request.out, send)
            break
        except _Overflow as overflow:
            request.out.unlink(missing_ok=True)
            if request.float_type != "auto":
                reason = "a value is too large for F16; convert to BF16"
                raise BadWeights(str(source.folder), overflow.tensor, reason) from overflow
            recipe.notes.append(f"{overflow.tensor} does not fit F16: written as BF16")
            qtype = GgmlType.BF16
    return Converted(
        architecture=recipe.metadata.architecture,
        float_type=qtype.name,
        file_bytes=size,
        pretokenizer=pre,
        num_tensors=len(recipe.tensors),
        notes=tuple(recipe.notes),
    )


def prepare(request: ConvertRequest, send: Step) -> Prepared:
    """What `convert` would write, without writing it. Raises: as `convert`."""
    send(0.0, 1.0, "")
    source = Checkpoint(request.folder, request.root)
    with _described_by(source.folder):
        recipe, _ = _complete_recipe(source)
        qtype = _float_type(source, request.float_type)
        slots = [_slot(t, qtype) for t in recipe.tensors]
        recipe.metadata.put("general.file_type", _FILE_TYPES[qtype])
        raw = header(recipe.metadata, slots)
        config = text_config(source.config)
        heads = int(config["num_attention_heads"])
        num_layers, num_kv_heads = int(config["num_hidden_layers"]), int(config.get("num_key_value_heads") or heads)
    head = len(raw)
    if request.header_only:
        with request.out.open("xb") as out:
            out.write(raw)
            out.truncate(file_bytes(head, slots))
    experts = next((s.shape[2] for s in slots if "_exps." in s.name), 0)
    spec = ModelSpec(
        architecture=recipe.metadata.architecture,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=num_kv_heads,
        num_experts=experts,
        tensors=tuple(TensorSpec(s.name, s.shape, s.qtype.name) for s in slots),
    )
    return Prepared(float_type=qtype.name, file_bytes=file_bytes(head, slots), header_bytes=head, spec=spec)


@contextlib.contextmanager
def _described_by(folder: Path) -> Iterator[None]:
    """Read a folder's JSON files, which come from anywhere and may hold anything in the place of anything.

    Raises: BadFile: a value is of a kind or size that no model has; the cause is kept for `--debug`.
    """
    try:
        yield
    except (
        TypeError,
        AttributeError,
        LookupError,
        ValueError,
        ArithmeticError,
        struct.error,
        RecursionError,
    ) as error:
        reason = f"{type(error).__name__}: {error}"
        what = f"config.json or a file of its tokenizer holds what no model has there ({reason})"
        raise BadFile(str(folder), what[:300]) from error


def _complete_recipe(source: Checkpoint) -> tuple[Recipe, str]:
    recipe = model_recipe(source)
    config = text_config(source.config)
    meta = recipe.metadata
    _put_general(recipe, source)
    meta.put("general.quantization_version", _QUANTIZATION_VERSION)
    arch = meta.architecture
    rows = next(t.shape[1] for t in recipe.tensors if t.name == "token_embd.weight")
    stated = rows if arch == "gemma3" else int(config.get("vocab_size") or rows)
    vocab = read_vocabulary(source, stated, phi=arch == "phi3", bert=arch == "bert")
    _put_family_quirks(recipe, source, vocab, stated)
    pre = "default"
    put_vocabulary(meta, source, vocab, pre)
    if vocab.model == "gpt2":
        pre = choose(open_tokenizer(source), source.json_file("tokenizer.json"), meta)
        meta.put("tokenizer.ggml.pre", pre)
    return recipe, pre


def _put_general(recipe: Recipe, source: Checkpoint) -> None:
    """Name, size label, licence and lineage, from the folder's name and model card."""
    sizes = [int(np.prod(t.shape, dtype=np.int64)) for t in recipe.tensors]
    total = sum(sizes)
    stacks = [(t, n) for t, n in zip(recipe.tensors, sizes, strict=True) if "_exps." in t.name]
    count = stacks[0][0].shape[2] if stacks else 0
    in_experts = sum(n for _, n in stacks)
    card = source.folder / "README.md"
    readable = not card.is_file() or card.stat().st_size < 1024 * 1024
    facts = gguf.Metadata.load(None, source.folder if readable else None, None, total)
    facts.name = facts.name or source.folder.name
    if facts.size_label is None:
        facts.size_label = gguf.size_label(total, total - in_experts, in_experts // count if count else 0, count)
    writer = gguf.GGUFWriter(None, recipe.metadata.architecture)
    writer.add_type("model")
    # gguf takes what the publisher's generation_config.json holds unchecked, and misses the repeat penalty.
    recommended = checked(source.optional_json("generation_config.json"), GENERATION_CONFIG_NAMES)
    for theirs, ours in GGUF_NAMES.items():
        setattr(facts, f"sampling_{theirs}", recommended.get(ours))
    facts.set_gguf_meta_model(writer)
    put_written(recipe.metadata, writer)


def _put_family_quirks(recipe: Recipe, source: Checkpoint, vocab: Vocabulary, stated: int) -> None:
    """Settings of the tokenizer that only some families need. Source: llama.cpp, conversion/{llama,gemma}.py."""
    meta = recipe.metadata
    prefix: Any = source.optional_json("tokenizer_config.json").get("add_prefix_space")
    if meta.architecture.startswith("gemma") and vocab.model == "llama":
        meta.put("tokenizer.ggml.add_space_prefix", False, ValueType.BOOL)
    if meta.architecture == "llama" and isinstance(prefix, bool):
        meta.put("tokenizer.ggml.add_space_prefix", prefix, ValueType.BOOL)
    codellama_vocabulary = 32016
    if meta.architecture == "llama" and stated == codellama_vocabulary:
        for name, number in (("prefix", 32007), ("suffix", 32008), ("middle", 32009), ("eot", 32010)):
            meta.put(f"tokenizer.ggml.{name}_token_id", number)


def _float_type(source: Checkpoint, wanted: FloatType) -> GgmlType:
    if wanted != "auto":
        return GgmlType[wanted]
    sizes: dict[str, int] = {}
    for name in source.names:
        info = source.info(name)
        if len(info.shape) > 1:
            sizes[info.dtype] = sizes.get(info.dtype, 0) + info.nbytes
    return GgmlType.BF16 if max(sizes, key=lambda d: sizes[d], default="F16") == "BF16" else GgmlType.F16


def _slot(tensor: OutTensor, qtype: GgmlType) -> TensorSlot:
    return TensorSlot(tensor.name, tensor.shape, GgmlType.F32 if tensor.keep_f32 else qtype)


class _Overflow(Exception):
    def __init__(self, tensor: str) -> None:
        self.tensor = tensor


def _write(source: Checkpoint, recipe: Recipe, qtype: GgmlType, out: Path, send: Step) -> int:
    recipe.metadata.put("general.file_type", _FILE_TYPES[qtype])
    slots = [_slot(t, qtype) for t in recipe.tensors]
    total = float(sum(s.num_bytes for s in slots))
    done = 0.0
    writer = GgufWriter(out, recipe.metadata, slots)
    try:
        for tensor, slot in zip(recipe.tensors, slots, strict=True):
            send(done, total, tensor.name)
            done += writer.write(tensor.name, _encoded(source, tensor, slot.qtype))
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    send(total, total, "")
    return file_bytes(writer.header_bytes, slots)


def _encoded(source: Checkpoint, tensor: OutTensor, qtype: GgmlType) -> Iterator[Array]:
    """The tensor's chunks in the target type. Raises: BadWeights: NaN or infinity. _Overflow."""
    for chunk in tensor.chunks():
        bits16 = chunk.dtype == np.uint16
        wide = bf16_to_f32(chunk) if bits16 else chunk
        if not np.isfinite(wide).all():
            kind = "NaN" if np.isnan(wide).any() else "infinity"
            raise BadWeights(str(source.folder), tensor.name, f"holds {kind}")
        if qtype is GgmlType.BF16:
            yield chunk if bits16 else f32_to_bf16(wide.astype(np.float32))
        elif qtype is GgmlType.F32:
            yield wide.astype(np.float32)
        elif wide.dtype == np.float16:
            yield wide
        else:
            with np.errstate(over="ignore"):
                narrow = wide.astype(np.float16)
            if not np.isfinite(narrow).all():
                raise _Overflow(tensor.name)
            yield narrow
