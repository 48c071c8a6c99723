"""Converts a Hugging Face folder: combines recipe, vocabulary and general metadata, and streams the tensors."""

import contextlib
import re
import struct
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import msgspec
import numpy as np
from tokenizers import Tokenizer

from quantize.convert.checkpoint import Checkpoint, SampledCheckpoint, bf16_to_f32, f32_to_bf16, text_config
from quantize.convert.families import model_recipe
from quantize.convert.tensor_map import Array, Metadata, OutTensor, Recipe
from quantize.convert.vocabulary import (
    Vocabulary,
    open_tokenizer,
    put_vocabulary,
    put_written,
    read_vocabulary,
)
from quantize.errors import BadFile, BadWeights, UnsupportedModel
from quantize.files.gguf_file import ValueType
from quantize.files.gguf_write import GgufWriter, TensorSlot, file_bytes, header
from quantize.files.output_file import require_disk
from quantize.files.safetensors_file import links_root
from quantize.files.sampling_keys import GENERATION_CONFIG_NAMES, GGUF_NAMES, checked
from quantize.ggml_types import GgmlType
from quantize.measurements import Step
from quantize.native.encode import tokenize
from quantize.native.eval_context import LoadFailed
from quantize.native.reference import LoadCheck, check_loads
from quantize.tensor_rules import allows_quantization
from quantize.types import FloatType, ModelSpec, TensorSpec

# llama.cpp's file type numbers for files that are mostly of one float type.
_FILE_TYPES = {GgmlType.F32: 0, GgmlType.F16: 1, GgmlType.BF16: 32}
_HALVES = frozenset({"F16", "BF16"})
_QUANTIZATION_VERSION = 2  # Source: ggml.h, GGML_QNT_VERSION


class ConvertRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Write the model in `folder` as GGUF to `out`, which must not exist.

    `header_only` is for `prepare`: write the header to `out`, with a hole instead of the weights. `float_type`
    "auto" keeps BF16 and F16 unchanged and converts F32 to F16 (BF16 if F16 would overflow).
    """

    folder: Path
    out: Path
    float_type: FloatType = "auto"
    header_only: bool = False


class ConversionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a conversion. `pretokenizer` is llama.cpp's name; `notes` describe what was omitted.

    `formats` is the number of weights that the folder stores in few bits, by format.
    """

    architecture: str
    float_type: str
    file_bytes: int
    pretokenizer: str
    num_tensors: int
    notes: tuple[str, ...] = ()
    formats: dict[str, int] = {}


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of the converted file before it is written: its size, and everything that a plan needs.

    `notes` and `formats` as in `ConversionResult`.
    """

    float_type: str
    file_bytes: int
    header_bytes: int
    spec: ModelSpec
    notes: tuple[str, ...] = ()
    formats: dict[str, int] = {}


def convert(request: ConvertRequest, send: Step) -> ConversionResult:
    """Convert a folder.

    If an error is raised, the output stays unfinished and the caller removes it.

    Raises: UnsupportedModel, BadWeights (names the tensor), BadFile, IncompleteFile, DiskFull; OSError from
    writing.
    """
    source = Checkpoint(request.folder)
    with _described_by(source.folder):
        recipe, pre = _complete_recipe(source)
        header(recipe.metadata, [])  # detect errors in the metadata before writing the tensors
    qtype = _float_type(source, request.float_type)
    _check_header(source, recipe, _slots(recipe, qtype, request.float_type), request.out)
    while True:
        try:
            recipe.metadata.put("general.file_type", _FILE_TYPES[qtype])
            size = _write(source, recipe, _slots(recipe, qtype, request.float_type), request.out, send)
            break
        except _Overflow as overflow:
            request.out.unlink(missing_ok=True)
            if request.float_type != "auto":
                reason = "a value is too large for F16; convert to BF16"
                raise BadWeights(str(source.folder), overflow.tensor, reason) from overflow
            recipe.notes.append(f"{overflow.tensor} does not fit F16: written as BF16")
            qtype = GgmlType.BF16
    return ConversionResult(
        architecture=recipe.metadata.architecture,
        float_type=qtype.name,
        file_bytes=size,
        pretokenizer=pre,
        num_tensors=len(recipe.tensors),
        notes=tuple(recipe.notes),
        formats=source.formats,
    )


def prepare(request: ConvertRequest, send: Step) -> Prepared:
    """Describe the output of `convert` without writing it. Raises: same as `convert`."""
    send(0.0, 1.0, "")
    source = Checkpoint(request.folder)
    with _described_by(source.folder):
        recipe, _ = _complete_recipe(source)
        qtype = _float_type(source, request.float_type)
        slots = _slots(recipe, qtype, request.float_type)
        recipe.metadata.put("general.file_type", _FILE_TYPES[qtype])
        raw = header(recipe.metadata, slots)
        config = text_config(source.config)
        heads = int(config["num_attention_heads"])
        num_layers, num_kv_heads = int(config["num_hidden_layers"]), int(config.get("num_key_value_heads") or heads)
    head = len(raw)
    if request.header_only:
        _write_header(request.out, raw, slots)
    experts = next((s.shape[2] for s in slots if "_exps." in s.name), 0)
    spec = ModelSpec(
        architecture=recipe.metadata.architecture,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=num_kv_heads,
        num_experts=experts,
        tensors=tuple(TensorSpec(s.name, s.shape, s.qtype.name) for s in slots),
    )
    return Prepared(
        float_type=qtype.name,
        file_bytes=file_bytes(head, slots),
        header_bytes=head,
        spec=spec,
        notes=tuple(recipe.notes),
        formats=source.formats,
    )


class SampledTensor(msgspec.Struct, frozen=True):
    """A matrix of the converted file, of which some rows are read: `runs` yields them from each of its `matrices`.

    Tensors that are `alike` have the same part in different layers, stored in the same format of few bits; empty
    for a tensor that is stored as floats.
    """

    name: str
    qtype: GgmlType
    matrices: int
    runs: Callable[[], Iterator[Array]]
    alike: str = ""


def sampled_tensors(folder: Path) -> tuple[SampledTensor, ...]:
    """The matrices of a folder's conversion that can be quantized. Raises: same as `convert`."""
    source = SampledCheckpoint(folder)
    with _described_by(source.folder):
        recipe = model_recipe(source)
        slots = _slots(recipe, _float_type(source, "auto"), "auto")
    tensors = []
    for tensor, slot in zip(recipe.tensors, slots, strict=True):
        if allows_quantization(TensorSpec(slot.name, slot.shape, slot.qtype.name)):
            matrices = int(np.prod(slot.shape[2:], dtype=np.int64))
            formats = sorted(tensor.formats - {""})
            alike = f"{re.sub('[0-9]+', '', slot.name)} {slot.qtype.name} {formats}" if formats else ""
            runs = partial(_sampled_floats, source, tensor, slot.qtype)
            tensors.append(SampledTensor(slot.name, slot.qtype, matrices, runs, alike))
    return tuple(tensors)


def _sampled_floats(source: Checkpoint, tensor: OutTensor, qtype: GgmlType) -> Iterator[Array]:
    """The values of the converted file as float32; none if F16 does not hold them."""
    try:
        for chunk in _encoded(source, tensor, qtype):
            yield bf16_to_f32(chunk) if chunk.dtype == np.uint16 else chunk.astype(np.float32)
    except _Overflow:
        return


def _write_header(path: Path, raw: bytes, slots: list[TensorSlot]) -> None:
    """Write a file whose weights are a hole."""
    with path.open("xb") as out:
        out.write(raw)
        out.truncate(file_bytes(len(raw), slots))


def _check_header(source: Checkpoint, recipe: Recipe, slots: list[TensorSlot], out: Path) -> None:
    """Let llama.cpp load the header before the weights are written. `out` does not exist afterwards.

    Raises: DiskFull. BadFile: no model has these weights and this config.json, usually because sizes differ.
    """
    raw = header(recipe.metadata, slots)
    require_disk(out.parent, file_bytes(len(raw), slots))
    try:
        _write_header(out, raw, slots)
        check_loads(LoadCheck(path=out), lambda *_: None)
    except LoadFailed as error:
        reason = f"llama.cpp refuses config.json with these weights: {error.reason}"
        raise BadFile(str(source.folder), reason) from error
    finally:
        out.unlink(missing_ok=True)


@contextlib.contextmanager
def _described_by(folder: Path) -> Iterator[None]:
    """Read a folder's untrusted JSON files, whose values may have any type.

    Raises: BadFile: a value has an invalid type or size; the cause is kept for `--debug`.
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
    recipe.notes += [
        f"{count} weights are stored as {what}: what that lost cannot be restored. Use the original instead, "
        "unless the model was trained in this format"
        for what, count in source.formats.items()
    ]
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
    """Write name, size label, licence and lineage, from the folder's name and model card."""
    sizes = [int(np.prod(t.shape, dtype=np.int64)) for t in recipe.tensors]
    total = sum(sizes)
    stacks = [(t, n) for t, n in zip(recipe.tensors, sizes, strict=True) if "_exps." in t.name]
    count = stacks[0][0].shape[2] if stacks else 0
    in_experts = sum(n for _, n in stacks)
    card = source.folder / "README.md"
    readable = not card.is_file() or card.stat().st_size < 1024 * 1024
    facts = gguf.Metadata.load(None, source.folder if readable else None, None, total)
    facts.name = facts.name or source.folder.name
    _name_snapshot(facts, source.folder, total)
    if facts.size_label is None:
        facts.size_label = gguf.size_label(total, total - in_experts, in_experts // count if count else 0, count)
    writer = gguf.GGUFWriter(None, recipe.metadata.architecture)
    writer.add_type("model")
    # gguf copies the values of generation_config.json unchecked, and omits the repeat penalty.
    recommended = checked(source.optional_json("generation_config.json"), GENERATION_CONFIG_NAMES)
    for theirs, ours in GGUF_NAMES.items():
        setattr(facts, f"sampling_{theirs}", recommended.get(ours))
    facts.set_gguf_meta_model(writer)
    put_written(recipe.metadata, writer)


def _name_snapshot(facts: gguf.Metadata, folder: Path, total: int) -> None:
    """Replace names that gguf derives from a commit, after which the hub's cache names its folders."""
    repository = links_root(folder).name.rpartition("--")[2]
    if facts.finetune != folder.name or repository == folder.name:
        return
    _, _, facts.basename, facts.finetune, facts.version, _ = gguf.Metadata.get_model_id_components(
        repository, total
    )
    if facts.name == folder.name:
        facts.name = gguf.Metadata.id_to_title(repository)


def _put_family_quirks(recipe: Recipe, source: Checkpoint, vocab: Vocabulary, stated: int) -> None:
    """Write tokenizer settings of some families. Source: llama.cpp, conversion/{llama,gemma}.py."""
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


def _float_type(source: Checkpoint, requested: FloatType) -> GgmlType:
    if requested != "auto":
        return GgmlType[requested]
    sizes: dict[str, int] = {}
    for name in source.names:
        info = source.info(name)
        if len(info.shape) > 1:
            sizes[info.dtype] = sizes.get(info.dtype, 0) + info.nbytes
    return GgmlType.BF16 if max(sizes, key=lambda d: sizes[d], default="F16") == "BF16" else GgmlType.F16


def _slots(recipe: Recipe, qtype: GgmlType, requested: FloatType) -> list[TensorSlot]:
    """The tensors to write. With "auto" a tensor in 16 bits keeps its type: BF16 rounds F16, F16 has less range."""

    def stored(tensor: OutTensor) -> GgmlType:
        if tensor.keep_f32 or (requested == "auto" and tensor.dtypes >= _HALVES):
            return GgmlType.F32  # experts in both types
        own = requested == "auto" and len(tensor.dtypes) == 1 and tensor.dtypes <= _HALVES
        return GgmlType[next(iter(tensor.dtypes))] if own else qtype

    return [TensorSlot(t.name, t.shape, stored(t)) for t in recipe.tensors]


class _Overflow(Exception):
    def __init__(self, tensor: str) -> None:
        self.tensor = tensor


def _write(source: Checkpoint, recipe: Recipe, slots: list[TensorSlot], out: Path, send: Step) -> int:
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


# Finds the llama.cpp pre-tokenizer that splits text like this tokenizer: looked up or deduced, and always tested.

# llama.cpp's pre-tokenizers by the hash of a tokenizer's output for one test text.
#
# Source: llama.cpp, conversion/base.py (get_vocab_base_pre), at the commit of llama-cpp-python 0.3.36.

# sha256 of str(ids) of TEST_TEXT: name
BY_HASH: dict[str, str] = {
    "b6e8e1518dc4305be2fe39c313ed643381c4da5db34a98f6a04c093f8afbe99b": "chatglm-bpe",
    "81d72c7348a9f0ebe86f23298d37debe0a5e71149e29bd283904c02262b27516": "chatglm-bpe",
    "a1336059768a55c99a734006ffb02203cd450fed003e9a71886c88acf24fdbc2": "glm4",
    "9ca2dd618e8afaf09731a7cf6e2105b373ba6a1821559f258b272fe83e6eb902": "glm4",
    "cdf5f35325780597efd76153d4d1c16778f766173908894c04afc20108536267": "glm4",
    "1431a23e583c97432bc230bff598d103ddb5a1f89960c8f1d1051aaa944d0b35": "minerva-7b",
    "7e57df22b1fe23a7b1e1c7f3dc4e3f96d43a4eb0836d0c6bdc3436d7b2f1c664": "hunyuan",
    "bba3b3366b646dbdded5dbc42d59598b849371afc42f7beafa914afaa5b70aa6": "hunyuan-dense",
    "e6ddf9c6686791c12d698d34c31ab9be1fea9af5a3d9a6909783ab382198ae1c": "hy_v4",
    "a6b57017d60e6edb4d88ecc2845188e0eb333a70357e45dcc9b53964a73bbae6": "falcon-h1",
    "60476e1243776c4fb1b993dbd7a5f15ac22f83c80afdf425fa5ae01c8d44ef86": "falcon-h1",
    "3eda48b4c4dc7de733d1a8b3e3b4a85243dbbf704da2ee9d42c6beced8897896": "falcon-h1",
    "48f8e02c0359c0bbdd82f26909171fac1c18a457bb47573ed1fe3bbb2c1cfd4b": "falcon-h1",
    "81212dc7cdb7e0c1074ca62c5aeab0d43c9f52b8a737be7b12a777c953027890": "kimi-k2",
    "d4540891389ea895b53b399da6ac824becc30f2fba0e9ddbb98f92e55ca0e97c": "qwen2",
    "1444df51289cfa8063b96f0e62b1125440111bc79a52003ea14b6eac7016fd5f": "qwen35",
    "66b8d4e19ab16c3bfd89bce5d785fb7e0155e8648708a1f42077cb9fe002c273": "grok-2",
    "b3d1dd861f1d4c5c0d2569ce36baf3f90fe8a102db3de50dd71ff860d91be3df": "jina-v2-de",
    "0fe1cf6eda062318a1af7270f3331a85c539a01778ff948e24388e949c5282f4": "gpt-2",
    "9e454714343b69b99b71795c1d27a68c2a1d15dab111f4d353109f966af29da7": "lfm2",
    "846deafc5b0fa786186fa4ae6c7b49903cf2f1d1895bdb80b9120d60be135252": "gemma4",
    "0a766d034107bc736a3f2dc4968fd62e54a3570f1454443e0c5a4cc6bd7941ed": "spark2_5",
    "0ef9807a4087ebef797fc749390439009c3b9eda9ad1a097abbe738f486c01e5": "llama-bpe",
    "049ecf7629871e3041641907f3de7c733e4dbfdc736f57d882ba0b0845599754": "deepseek-llm",
    "347715f544604f9118bb75ed199f68779f423cabb20db6de6f31b908d04d7821": "deepseek-coder",
    "8aeee3860c56296a157a1fe2fad249ec40aa59b1bb5709f4ade11c4e6fe652ed": "falcon",
    "0876d13b50744004aa9aeae05e7b0647eac9d801b5ba4668afc01e709c15e19f": "jina-v2-en",
    "9d032fcbd5501f4a38150912590928bfb36091efb5df11b8e2124b0390e3fb1e": "falcon3",
    "8e62295832751ca1e8f92f2226f403dea30dc5165e448b5bfa05af5340c64ec7": "bert-bge-large",
    "b6dc8df998e1cfbdc4eac8243701a65afe638679230920b50d6f17d81c098166": "olmo",
    "35d91631860c815f952d711435f48d356ebac988362536bed955d43bfa436e34": "starcoder",
    "3ce83efda5659b07b1ad37ca97ca5797ea4285d9b9ab0dc679e4a720c9da7454": "gpt-2",
    "32d85c31273f8019248f2559fed492d929ea28b17e51d81d3bb36fff23ca72b3": "stablelm2",
    "6221ad2852e85ce96f791f476e0b390cf9b474c9e3d1362f53a24a06dc8220ff": "refact",
    "9c2227e4dd922002fb81bde4fc02b0483ca4f12911410dee2255e4987644e3f8": "command-r",
    "d772b220ace2baec124bed8cfafce0ead7d6c38a4b65ef11261cf9d5d62246d1": "tiny_aya",
    "52df12b4c8d4176e7481aab4b6e8454d1fd0a210a04a574f6d4e067d10e23c3e": "cohere2moe",
    "e636dc30a262dcc0d8c323492e32ae2b70728f4df7dfe9737d9f920a282b8aea": "qwen2",
    "a8594e3edff7c29c003940395316294b2c623e09894deebbc65f33f1515df79e": "dbrx",
    "c7699093ba4255a91e702aa38a596aa81669f3525dae06c2953267dde580f448": "jina-v1-en",
    "171aeeedd6fb548d418a7461d053f11b6f1f1fc9b387bd66640d28a4b9f5c643": "jina-v2-es",
    "27949a2493fc4a9f53f5b9b029c82689cfbe5d3a1929bb25e043089e28466de6": "jina-v2-de",
    "a023e9fdc5a11f034d3ef515b92350e56fb2af1f66c6b6811a4444ea9bf8763d": "jina-v5-nano",
    "c136ed14d01c2745d4f60a9596ae66800e2b61fa45643e72436041855ad4089d": "smaug-bpe",
    "c7ea5862a53e4272c035c8238367063e2b270d51faa48c0f09e9d5b54746c360": "poro-chat",
    "7967bfa498ade6b757b064f31e964dddbb80f8f9a4d68d4ba7998fcf281c531a": "jina-v2-code",
    "7fc505bd3104ca1083b150b17d088b59534ede9bde81f0dd2090967d7fe52cee": "viking",
    "b53802fb28e26d645c3a310b34bfe07da813026ec7c7716883404d5e0f8b1901": "jais",
    "bc5108ee1eb6a3d600cadd065f63190fbd0554dbc9e4bbd6a0d977970afc8d2a": "jais-2",
    "7b3e7548e4308f52a76e8229e4e6cc831195d0d1df43aed21ac6c93da05fec5f": "codeshell",
    "63b97e4253352e6f357cc59ea5b583e3a680eaeaf2632188c2b952de2588485e": "tekken",
    "855059429035d75a914d1eda9f10a876752e281a054a7a3d421ef0533e5b6249": "smollm",
    "3c30d3ad1d6b64202cd222813e7736c2db6e1bd6d67197090fc1211fbc612ae7": "bloom",
    "bc01ce58980e1db43859146dc51b1758b3b88729b217a74792e9f8d43e479d21": "gpt3-finnish",
    "4e2b24cc4770243d65a2c9ec19770a72f08cffc161adbb73fcbb6b7dd45a0aae": "exaone",
    "fcace8b9cac38ce847670c970cd5892031a753a1ef381abd1d9af00f713da085": "phi-2",
    "60824e3c0d9401f89943cbb2fff727f0e2d4c545ba4df2d6e4f09a6db0f5b450": "chameleon",
    "8b5a93ed704057481f240da0be7e7dca721d7f8f4755263b6807227a2cbeae65": "roberta-bpe",
    "ad851be1dba641f2e3711822f816db2c265f788b37c63b4e1aeacb9ee92de8eb": "gigachat",
    "d4c8f286ea6b520b3d495c4455483cfa2302c0cfcd4be05d781b6a8a0a7cdaf1": "megrez",
    "877081d19cf6996e2c4ff0e1236341e9b7bde288f5311a56a937f0afbbb3aeb5": "deepseek-v3",
    "b3f499bb4255f8ca19fccd664443283318f2fd2414d5e0b040fbdd0cc195d6c5": "deepseek-r1-qwen",
    "ccc2ef013c104be7bae2965776d611e1d7a8a2a9c547dd93a682c9a9fc80352e": "gpt-4o",
    "7dec86086fcc38b66b7bc1575a160ae21cf705be7718b9d5598190d7c12db76f": "superbpe",
    "1994ffd01900cfb37395608534236ecd63f2bd5995d6cb1004dda1af50240f15": "trillion",
    "96a5f08be6259352137b512d4157e333e21df7edd3fcd152990608735a65b224": "bailingmoe",
    "d353350c764d8c3b39c763113960e4fb4919bea5fbf208a0e3b22e8469dc7406": "llama4",
    "0e9433cbbb161f89e264eb32e8e64bfe69e834973ffca5d41d3948a604a3e2a3": "pixtral",
    "d5f1dd6f980fec569fb218a81a7658ac45fc56b38c5a0adeb1c232fbe04ef5ec": "seed-coder",
    "b0a6b1c0bd5998ebd9df08611efde34a4ff03faed45ae09c43e6b31ebd4b94cf": "a.x-4.0",
    "f6791d196f87ce6b56a7d234be618e0d58f8cda3549416635b2bebcd22cd95c4": "midm-2.0",
    "169bf0296a13c4d9b7672313f749eb36501d931022de052aad6e36f2bf34dd51": "lfm2",
    "2085e1638f6c377a0aa4ead21b27bb4cb941bf800df86ed391011769c1758dfb": "exaone4",
    "a1e163ecab2e718a4c829d1148b6e86824ec36163bb71941c3dca9cd5ac25756": "mellum",
    "a0b64b4385f123663873756336c085744376d015ff328bb1d901598f63c44152": "modern-bert",
    "49fc0303c9e0d2c2c565c510f64b2d9b271276acdcdadff733249eda9f7d59df": "afmoe",
    "9b1be57e70d20d9501b2b3186e792d81181ae36ada3903c26f9fea418cf87206": "bailingmoe2",
    "53e325976a6e142379c19b09afcae354f2f496f147afa8f9e189a33fe4e3024e": "granite-docling",
    "f4f37b6c8eb9ea29b3eac6bb8c8487c5ab7885f8d8022e67edc1c68ce8403e95": "minimax-m2",
    "4a2e2abae11ca2b86d570fc5b44be4d5eb5e72cc8f22dd136a94b37da83ab665": "kormo",
    "9d70134b369a70e5735009b6de918f7581b5211f7c074d1f89f753aea8248af1": "youtu",
    "16389f0a1f51ee53e562ffd51c371dc508639ab0e4261502071836e50e223e91": "solar-open",
    "6c81ce329e0802883b22eabab0d3fa48357337ef1ecb45443828bf1f6254833f": "exaone-moe",
    "d30d75d9059f1aa2c19359de71047b3ae408c70875e8a3ccf8c5fba56c9d8af4": "qwen35",
    "b4b8ca1f9769494fbd956ebc4c249de6131fb277a4a3345a7a92c7dd7a55808d": "joyai-llm",
    "e4d54df1ebc1f2b91acd986c5b51aa50837d5faf7c7398e73c1f9e9ee5d19869": "kanana2",
    "862f827721df956049dff5ca81a57f29e575280bc622e290d3bf4e35eca29015": "f2llmv2",
    "62f6fb0a6fd5098caeabb19b07a5c1099cafc8b9c40eab6ea89ece4ec02fbc57": "sarvam-moe",
    "f728162c1315c26e40249849799b4ba3fe584c32084b4795b03eb295e63cb5af": "talkie",
    "36f3066e97b7f3994b379aaacde306c1444c6ae84e81a5ae3cd2b7ed3b8c42d4": "minicpm5",
    "f241072145675bf8322086f115aebad05e9f869557a238bf2150a2a417d1bf60": "granite-embed-multi-97m",
    "789696f5946cc0fc59371f39f6097cafed196b3acded6140432f26bbb1ae1669": "granite-embed-multi-311m",
    "9dcf830ee9990cdbf78cc523a5f7bd9ad8f3f9890c2d3581d2785ad10f07049d": "mellum2",
    "972da7b59cec44d1f0a490a86c96df53859e486e481563e5dddac155013d87ac": "laguna",
    "653660222fb704f61cbf2b618a8ae6502b7f8b20c980f9a5de07ed78e13319cd": "ufakzeka",
}

# The text behind the hashes: spaces, numbers, scripts, contractions, emoji.
TEST_TEXT = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n\U0001f680 (normal) \U0001f636\u200d\U0001f32b"
    "\ufe0f (multiple emojis concatenated) \u2705 \U0001f999\U0001f999 3 33 333 3"
    "333 33333 333333 3333333 33333333 3.3 3..3 3...3"
    " \u1780\u17b6\u1793\u17cb\u178f\u17c2\u1796\u17b7\u179f\u17c1\u179f\u17a2\u17b6\u1785\U0001f601"
    " ?\u6211\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e ------======= \u043d\u0435\u0449\u043e"
    " \u043d\u0430 \u0411\u044a\u043b\u0433\u0430\u0440\u0441\u043a\u0438 ''''''```````\"\"\"\"....."
    ".!!!!!!?????? I've been 'told he's there, 'RE yo"
    "u sure? 'M not sure I'll make it, 'D you like so"
    "me tea? We'Ve a'lL"
)

# Signs in tokenizer.json, checked in this order: the first entry whose parts all occur is the most likely.
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((r"\p{Lu}\p{Lt}", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}"), "gpt-4o"),
    ((r"\p{Lu}\p{Lt}", r"[\r\n/]*"), "tekken"),
    ((r"\p{N}{1,3}", r"[\u4e00-\u9fa5", r"\p{P}\p{S}"), "deepseek-v3"),
    ((r"\p{N}{1,3}", r"[一-龥", r"\p{P}\p{S}"), "deepseek-v3"),
    ((r"[\p{L}\p{M}]+", r"\p{N}|"), "qwen35"),
    ((r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\p{N}{1,3}"), "llama-bpe"),
    ((r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\p{N}|"), "qwen2"),
    (("Digits", "individual", "ByteLevel use_regex"), "smollm"),
    (("Punctuation", "ByteLevel use_regex", "Digits"), "falcon"),
    (("ByteLevel use_regex",), "gpt-2"),
)
# One name for each splitting that llama.cpp supports, most common first.
_DISTINCT = (
    "llama-bpe", "qwen2", "gpt-2", "gpt-4o", "tekken", "smollm", "qwen35", "deepseek-v3", "deepseek-llm",
    "deepseek-coder", "falcon", "stablelm2", "chatglm-bpe", "smaug-bpe", "seed-coder", "bailingmoe", "minicpm5",
    "spark2_5", "exaone-moe", "laguna", "ufakzeka", "superbpe", "viking", "poro-chat", "tiny_aya", "afmoe",
    "kimi-k2", "youtu", "granite-embed-multi-97m", "jais-2", "chameleon", "gemma4", "default",
)  # fmt: skip
# In addition to the test text: code, other scripts, runs of spaces and digits, contractions, line ends.
TRIALS = (
    TEST_TEXT,
    "def f(x):\n    return x**2 + 3.14  # it's 100% done\n\n\n\treturn\r\n",
    "Grüße aus Köln; naïve café, Ελληνικά, русский текст, 漢字かな交じり文, 한국어, العربية, हिन्दी",
    "We'll see: I'd've thought THEY'RE 'quoted'. 1234567890 12,345.67 2024-01-02T03:04:05Z",
    "a  b   c    d\t\te \n \n\n  f\u00a0g\u3000h",
    "https://example.org/path?q=1&r=2#frag <b>html</b> {\"json\": [1, 2, null]} $HOME ~/x | grep -v '^#'",
    "🙂🙃👩‍👩‍👧‍👦 e\u0301 n\u0303o ½ ² ① Ⅷ",
)


def choose(tokenizer: Tokenizer, data: dict[str, Any], meta: Metadata) -> str:
    """The llama.cpp pre-tokenizer that gives the same ids as `tokenizer` on every test text.

    `meta` must contain the rest of the vocabulary. Raises: UnsupportedModel: no pre-tokenizer matches.
    """
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in TRIALS]
    with TemporaryDirectory(prefix="vocabulary-") as folder:
        path = Path(folder) / "vocabulary.gguf"
        for name in candidates(tokenizer, data):
            trial = Metadata(meta.architecture)
            trial.update(meta)
            trial.put("tokenizer.ggml.pre", name)
            path.write_bytes(header(trial, ()))
            if tokenize(path, list(TRIALS)) == expected:
                return name
    raise UnsupportedModel(
        str(meta.architecture), "llama.cpp splits text in no way that gives this tokenizer's token ids"
    )


def candidates(tokenizer: Tokenizer, data: dict[str, Any]) -> Iterator[str]:
    """Names to try, most likely first, each once: the known hash, tokenizer.json, all others."""
    seen: set[str] = set()
    by_hash = BY_HASH.get(sha256(str(tokenizer.encode(TEST_TEXT).ids).encode()).hexdigest())
    for name in (by_hash, deduced(data), *_DISTINCT):
        if name and name not in seen:
            seen.add(name)
            yield name


def deduced(data: dict[str, Any]) -> str | None:
    """llama.cpp's name for the pre-tokenizer described in tokenizer.json, or None if its parts are unknown."""
    parts = " ".join(_parts(data.get("pre_tokenizer")))
    return next((name for signs, name in _SIGNS if all(sign in parts for sign in signs)), None)


def _parts(node: Any) -> Iterator[str]:
    """Kinds, settings and patterns of a pre-tokenizer, as a flat sequence."""
    if not isinstance(node, dict):
        return
    for child in node.get("pretokenizers", ()):
        yield from _parts(child)
    kind = str(node.get("type"))
    yield kind
    if kind == "ByteLevel" and node.get("use_regex", True):
        yield "ByteLevel use_regex"
    if kind == "Digits" and node.get("individual_digits"):
        yield "individual"
    pattern = node.get("pattern")
    if isinstance(pattern, dict):
        yield str(pattern.get("Regex") or pattern.get("String") or "")
