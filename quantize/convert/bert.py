"""BERT: encoders for embeddings, and rerankers with one score."""

import re
from collections.abc import Iterator
from typing import Final

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import Config
from quantize.convert.tensor_map import Array, Metadata, OutTensor, Recipe
from quantize.errors import BadFile, UnsupportedModel
from quantize.files.gguf_file import ValueType

ARCHITECTURES = ("BertModel", "BertForMaskedLM", "BertForSequenceClassification")
RANKER: Final = "BertForSequenceClassification"
# Names of llama.cpp's tensors. Source: llama.cpp, gguf-py/gguf/tensor_mapping.py.
_OUTER: Final = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_HEAD: Final = {"pooler.dense": "cls", "classifier": "cls.output"}
_LAYER: Final = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_NAME: Final = re.compile(r"^encoder\.layer\.(\d+)\.(.+)$")
_POOLING: Final = "1_Pooling"
_MEAN: Final = 1  # Source: llama.h, enum llama_pooling_type
_CLS: Final = 2
_RANK: Final = 4
_ADDED: Final = frozenset({"position_embd.weight", "token_types.weight"})  # llama.cpp adds them in float32


def recipe(source: Checkpoint, config: Config) -> Recipe:
    """How a checkpoint of this family becomes a GGUF file.

    Raises: UnsupportedModel: an activation, positions or a head that llama.cpp's BERT does not have. BadFile.
    """
    ranks = RANKER in config["architectures"]
    wanted = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
    for key, value in wanted.items():
        if config.get(key, value) != value:
            raise UnsupportedModel(str(source.folder), f"{key} is {config[key]!r}; only {value!r} can be run")
    tensors, left = [], []
    for full in source.names:
        name = _target(full, ranks=ranks)
        if name is None:
            left.append(full)
        elif name:
            tensors.append(_tensor(source, full, name))
    _check(source, config, {t.name for t in tensors}, ranks=ranks)
    meta = Metadata("bert")
    meta.put(".block_count", int(config["num_hidden_layers"]))
    meta.put(".context_length", int(config["max_position_embeddings"]))
    meta.put(".embedding_length", int(config["hidden_size"]))
    meta.put(".feed_forward_length", int(config["intermediate_size"]))
    meta.put(".attention.head_count", int(config["num_attention_heads"]))
    meta.put_float(".attention.layer_norm_epsilon", config["layer_norm_eps"])
    meta.put(".attention.causal", False, ValueType.BOOL)
    meta.put(".pooling_type", _RANK if ranks else _pooling(source))
    meta.put("tokenizer.ggml.token_type_count", int(config.get("type_vocab_size") or 1))
    notes = [f"{len(left)} tensors that embeddings do not need were left out"] if left else []
    if ranks:
        notes.append("llama.cpp gives query and document one segment: scores are not quite the model's; ONNX's are")
    return Recipe(meta, sorted(tensors, key=_order), notes)


def _target(full: str, *, ranks: bool) -> str | None:
    """GGUF's name of a tensor; empty where it is derived, None where it is not needed.

    Raises: UnsupportedModel: no rule knows it.
    """
    name = full.removeprefix("bert.")
    if name.endswith("position_ids"):
        return ""
    part, _, ending = name.rpartition(".")
    if part in _OUTER:
        return f"{_OUTER[part]}.{ending}"
    if part in _HEAD and ranks:
        return f"{_HEAD[part]}.{ending}"
    if part in _HEAD or name.startswith("cls."):
        return None
    match = _NAME.match(part)
    if match and match.group(2) in _LAYER:
        return f"blk.{match.group(1)}.{_LAYER[match.group(2)]}.{ending}"
    raise UnsupportedModel("", f"no rule for the tensor {full!r}")


def _tensor(source: Checkpoint, full: str, name: str) -> OutTensor:
    info = source.info(full)
    rows = info.num_values // info.shape[-1]

    def chunks() -> Iterator[Array]:
        yield from source.chunks(full, rows)

    return OutTensor(name, tuple(reversed(info.shape)), chunks, keep_f32=len(info.shape) == 1 or name in _ADDED)


def _check(source: Checkpoint, config: Config, found: set[str], *, ranks: bool) -> None:
    """Raises: BadFile: a tensor is missing. UnsupportedModel: a head with several scores."""
    needed = {f"{name}.weight" for name in _OUTER.values()}
    for layer in range(int(config["num_hidden_layers"])):
        needed |= {f"blk.{layer}.{name}.{ending}" for name in _LAYER.values() for ending in ("weight", "bias")}
    if ranks:
        needed |= {f"{name}.{ending}" for name in _HEAD.values() for ending in ("weight", "bias")}
        scores = source.info("classifier.weight").shape[0] if source.has("classifier.weight") else 0
        if scores > 1:
            raise UnsupportedModel(str(source.folder), f"its head has {scores} classes; a reranker has one score")
    missing = sorted(needed - found)
    if missing:
        raise BadFile(str(source.folder), f"{len(missing)} tensors are missing, such as {missing[0]}")


def _pooling(source: Checkpoint) -> int:
    """How rows become one, from the folder's sentence-transformers module, else the mean."""
    if not (source.folder / _POOLING / "config.json").is_file():
        return _MEAN
    pooling = source.json_file("config.json", _POOLING)
    if pooling.get("pooling_mode_cls_token"):
        return _CLS
    if not pooling.get("pooling_mode_mean_tokens", True):
        raise UnsupportedModel(str(source.folder), "it pools neither the mean nor the first token")
    return _MEAN


def _order(tensor: OutTensor) -> tuple[int, str]:
    return (int(tensor.name.split(".")[1]) if tensor.name.startswith("blk.") else -1, tensor.name)
