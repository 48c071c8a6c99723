"""Common parts of the decoder-only families: tensor names, shapes, rotary order, hyperparameters."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from quantize.convert.checkpoint import Checkpoint, bf16_to_f32
from quantize.convert.small_floats import INSTEAD
from quantize.convert.tensor_map import Array, Metadata, OutTensor, Recipe
from quantize.errors import BadFile, BadWeights, UnsupportedModel

Config = Mapping[str, Any]

# Names outside the layers; a folder may put the whole decoder below "language_model".
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
# Names within a layer, without the ending (weight or bias).
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Omitted on purpose: recomputed by the runtime, or part of another modality.
_DERIVED = re.compile(r"(rotary_emb\.inv_freq|masked_bias|attn\.bias)$")
_OTHER_MODALITY = re.compile(
    r"(^|\.)(vision_tower|vision_model|visual|multi_modal_projector|audio_tower|audio_model)\."
)
_LAYER_NAME = re.compile(r"^model\.layers\.(\d+)\.(.+)\.(weight|bias)$")
_EXPERT = re.compile(r"^model\.layers\.(\d+)\.(.+)\.experts\.(\d+)\.([a-z0-9_]+)\.weight$")


class Rules(msgspec.Struct, frozen=True):
    """A family's differences from the common names and values.

    `layer_names` replaces LAYER. `rotary_heads`: number of heads in q and k whose rows are stored in halves and
    must be interleaved (empty: none). `shifted_norms`: add one to every norm. `expert_names` maps an expert's parts
    to GGUF names. `ignores_window`: the runtime has no sliding windows for this architecture.
    """

    layer_names: Mapping[str, str] = msgspec.field(default_factory=lambda: LAYER)
    rotary_heads: Mapping[str, int] = msgspec.field(default_factory=dict)
    shifted_norms: bool = False
    expert_names: Mapping[str, str] = msgspec.field(default_factory=dict)
    num_experts: int = 0
    vocab_rows: int | None = None
    ignores_window: bool = True


def plain_name(name: str) -> str:
    """A tensor's name without the prefix of multimodal models."""
    for prefix in ("model.language_model.", "language_model.model."):
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    return name.removeprefix("language_model.")


def decoder_recipe(
    source: Checkpoint,
    config: Config,
    name: str,
    rules: Rules | None = None,
    *,
    heads: bool = True,
    theta: float | None = 10_000.0,
) -> Recipe:
    """The recipe that every decoder shares; `name` is GGUF's name of the architecture.

    With `heads`, the key and value lengths of a head are also written. `theta` is the default base of the rotary
    frequencies; with None it is not written.
    """
    tensors, notes = _tensors(source, config, rules or Rules())
    meta = Metadata(name)
    _put_common(meta, config)
    if heads:
        meta.put(".attention.key_length", head_dim(config))
        meta.put(".attention.value_length", head_dim(config))
    if theta is not None:
        _put_rope(meta, config, theta)
    return Recipe(meta, tensors, notes)


def _tensors(source: Checkpoint, config: Config, rules: Rules) -> tuple[list[OutTensor], list[str]]:
    """All tensors of the decoder, and notes about omitted ones.

    Raises: UnsupportedModel: no rule for a tensor. BadWeights: an impossible shape.
    """
    tied = bool(config.get("tie_word_embeddings", False))
    tensors: list[OutTensor] = []
    experts: dict[tuple[int, str], dict[int, str]] = {}
    skipped = 0
    for full in source.names:
        name = plain_name(full)
        if _OTHER_MODALITY.search(full):
            skipped += 1
            continue
        if _DERIVED.search(name) or (tied and name == "lm_head.weight"):
            continue
        expert = _EXPERT.match(name)
        if expert:
            layer, _, number, part = expert.groups()
            experts.setdefault((int(layer), part), {})[int(number)] = full
            continue
        tensors.append(_single(source, full, name, rules))
    for (layer, part), members in sorted(experts.items()):
        tensors.append(_stacked(source, layer, part, members, rules))
    notes = [f"{skipped} tensors of other modalities were left out"] if skipped else []
    if rules.ignores_window and _window(config):
        notes.append(f"the sliding window of {_window(config)} tokens is not applied: all layers see all tokens")
    _check_layers(source, tensors, config)
    return sorted(tensors, key=_order), notes


def _window(config: Config) -> int:
    """Size of the sliding window in tokens, 0 if none is used within the context."""
    window = int(config.get("sliding_window") or 0)
    within = window < int(config.get("max_position_embeddings") or 0)
    return window if within and config.get("use_sliding_window", True) else 0


def _single(source: Checkpoint, full: str, name: str, rules: Rules) -> OutTensor:
    if name in OUTER:
        target = OUTER[name]
        rows = rules.vocab_rows if target == "token_embd.weight" else None
        return _plain(source, full, target, shift=rules.shifted_norms and "norm" in target, rows=rows)
    match = _LAYER_NAME.match(name)
    target = rules.layer_names.get(match.group(2), "") if match else ""
    if not match or not target:
        stated = f" (config.json states that it is quantized with {source.quantization}); {INSTEAD}"
        reason = f"no rule for the tensor {full!r}{stated if source.quantization else ''}"
        raise UnsupportedModel(str(source.folder), reason)
    layer, inner, ending = match.groups()
    out = f"blk.{layer}.{target}.{ending}"
    heads = rules.rotary_heads.get(inner)
    if heads:
        return _interleaved(source, full, out, heads)
    return _plain(source, full, out, shift=rules.shifted_norms and target.endswith("norm"))


def _plain(
    source: Checkpoint, full: str, target: str, *, shift: bool = False, rows: int | None = None
) -> OutTensor:
    info = source.info(full)
    shape = info.shape if rows is None else (min(rows, info.shape[0]), *info.shape[1:])
    total = int(np.prod(shape[:-1], dtype=np.int64)) if len(shape) > 1 else 1

    def chunks() -> Iterator[Array]:
        for chunk in source.chunks(full, total):
            yield to_f32(chunk) + np.float32(1) if shift else chunk

    return _of_one(source, full, target, shape, chunks)


def _interleaved(source: Checkpoint, full: str, target: str, heads: int) -> OutTensor:
    """Rows of each head stored as two halves, written as pairs: llama.cpp rotates neighbours."""
    info = source.info(full)
    total = info.shape[0]
    if total % (2 * heads):
        reason = f"{total} rows cannot be shared by {heads} heads"
        raise BadWeights(str(source.folder), full, reason)
    size = total // heads

    def chunks() -> Iterator[Array]:
        if len(info.shape) == 1:
            whole = source.rows(full, 0, 1)
            yield whole.reshape(heads, 2, size // 2).swapaxes(1, 2).reshape(1, total)
            return
        for chunk in source.chunks(full, total, group=size):
            halves = chunk.reshape(-1, 2, size // 2, chunk.shape[1])
            yield halves.swapaxes(1, 2).reshape(chunk.shape)

    return _of_one(source, full, target, info.shape, chunks)


def _of_one(
    source: Checkpoint, full: str, target: str, shape: tuple[int, ...], chunks: Callable[[], Iterator[Array]]
) -> OutTensor:
    """A tensor made from a single one of the folder; `shape` is in C order."""
    return OutTensor(
        target,
        tuple(reversed(shape)),
        chunks,
        keep_f32=_wants_f32(target, shape),
        dtypes=frozenset({source.info(full).dtype}),
        formats=frozenset({source.format_of(full)}),
    )


def _stacked(source: Checkpoint, layer: int, part: str, members: dict[int, str], rules: Rules) -> OutTensor:
    """All experts of one part as one tensor."""
    target = rules.expert_names.get(part)
    if target is None:
        name = next(iter(members.values()))
        raise UnsupportedModel(str(source.folder), f"no rule for the tensor {name!r}")
    missing = [n for n in range(rules.num_experts) if n not in members]
    if missing or len(members) != rules.num_experts:
        reason = f"layer {layer} has {len(members)} of {rules.num_experts} experts for {part}"
        raise BadFile(str(source.folder), reason)
    ordered = [members[n] for n in range(rules.num_experts)]
    shape = source.info(ordered[0]).shape
    for name in ordered:
        if source.info(name).shape != shape:
            raise BadWeights(str(source.folder), name, f"shape {source.info(name).shape}, others {shape}")

    def chunks() -> Iterator[Array]:
        for name in ordered:
            yield from source.chunks(name, shape[0])

    return OutTensor(
        f"blk.{layer}.{target}.weight",
        (*reversed(shape), rules.num_experts),
        chunks,
        dtypes=frozenset(source.info(name).dtype for name in ordered),
        formats=frozenset(source.format_of(name) for name in ordered),
    )


def _wants_f32(target: str, shape: tuple[int, ...]) -> bool:
    return len(shape) <= 1 or target.endswith("_norm.weight") or ".ffn_gate_inp." in target


def _order(tensor: OutTensor) -> tuple[int, str]:
    """Sort key: by layer, as llama.cpp reads; tensors outside the layers come first."""
    parts = tensor.name.split(".")
    return (int(parts[1]), tensor.name) if parts[0] == "blk" else (-1, tensor.name)


def _check_layers(source: Checkpoint, tensors: list[OutTensor], config: Config) -> None:
    names = {t.name for t in tensors}
    layers = int(config["num_hidden_layers"])
    hidden = int(config["hidden_size"])
    for name in ("token_embd.weight", "output_norm.weight"):
        if name not in names:
            raise BadFile(str(source.folder), f"no tensor gives {name}")
    if config.get("tie_word_embeddings") is False and "output.weight" not in names:
        reason = "no tensor gives output.weight, and config.json says that it is not the embedding"
        raise BadFile(str(source.folder), reason)
    if lacking := _lacking(names, layers):
        raise BadFile(str(source.folder), lacking)
    for tensor in tensors:
        into_hidden = tensor.name == "token_embd.weight" or tensor.name.endswith(("attn_q.weight", "ffn_up.weight"))
        if into_hidden and tensor.shape[0] != hidden:
            raise BadWeights(str(source.folder), tensor.name, f"rows of {tensor.shape[0]}, expected {hidden}")
        if tensor.name.startswith("blk.") and int(tensor.name.split(".")[1]) >= layers:
            raise BadFile(str(source.folder), f"{tensor.name} is beyond the {layers} layers of config.json")
    _check_shapes(source, tensors)


def _check_shapes(source: Checkpoint, tensors: list[OutTensor]) -> None:
    """Raises: BadWeights: a tensor is empty, or its shape differs from that in other layers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in tensors:
        shape = shapes.setdefault(_part(tensor.name), tensor.shape)
        if tensor.shape != shape:
            raise BadWeights(str(source.folder), tensor.name, f"shape {tensor.shape}, other layers {shape}")
        if not tensor.shape or 0 in tensor.shape:
            raise BadWeights(str(source.folder), tensor.name, f"shape {tensor.shape}, which contains no values")


def _part(name: str) -> str:
    """A tensor's name without its layer."""
    return name.split(".", 2)[2] if name.startswith("blk.") else name


def _lacking(names: set[str], layers: int) -> str:
    """The first part that a layer lacks, as text; all layers of these families have the same parts."""
    parts = sorted({_part(n) for n in names if n.startswith("blk.")})
    for layer in range(layers):
        for part in ("attn_norm", "attn_output", "ffn_down"):
            if not any(n.startswith(f"blk.{layer}.{part}") for n in names):
                return f"layer {layer} lacks {part}"
        if missing := next((part for part in parts if f"blk.{layer}.{part}" not in names), None):
            return f"layer {layer} lacks {missing}, which other layers have"
    return ""


def to_f32(chunk: Array) -> Array:
    """Any chunk as float32."""
    return bf16_to_f32(chunk) if chunk.dtype == np.uint16 else chunk.astype(np.float32)


def _put_common(meta: Metadata, config: Config) -> None:
    """Write the sizes and norms common to all families. Raises: KeyError: missing in the configuration."""
    meta.put(".block_count", int(config["num_hidden_layers"]))
    if config.get("max_position_embeddings") is not None:
        meta.put(".context_length", int(config["max_position_embeddings"]))
    meta.put(".embedding_length", int(config["hidden_size"]))
    meta.put(".feed_forward_length", int(config["intermediate_size"]))
    heads = int(config["num_attention_heads"])
    meta.put(".attention.head_count", heads)
    meta.put(".attention.head_count_kv", int(config.get("num_key_value_heads") or heads))
    meta.put_float(".attention.layer_norm_rms_epsilon", config.get("rms_norm_eps", 1e-6))


def head_dim(config: Config) -> int:
    """Number of values in one attention head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def rope(config: Config) -> dict[str, Any]:
    """The parameters of the full-attention rotary embedding, from any of the configuration's formats."""
    raw = config.get("rope_parameters") or config.get("rope_scaling") or {}
    chosen = dict(raw.get("full_attention", raw)) if isinstance(raw, dict) else {}
    if "rope_type" not in chosen and chosen.get("type"):
        chosen["rope_type"] = chosen["type"]
    for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        if key not in chosen and config.get(key) is not None:
            chosen[key] = config[key]
    return chosen


def _put_rope(meta: Metadata, config: Config, default_theta: float) -> None:
    """Write base frequency and scaling. Raises: UnsupportedModel: an unknown kind of scaling."""
    params = rope(config)
    meta.put_float(".rope.freq_base", params.get("rope_theta", default_theta))
    kind = params.get("rope_type")
    factor = params.get("factor")
    if kind in {None, "default", "llama3", "dynamic"} or (kind in {"linear", "yarn"} and factor is None):
        return
    if kind in {"longrope", "su"}:
        meta.put(".rope.scaling.type", "longrope")
        return
    if kind not in {"linear", "yarn"}:
        raise UnsupportedModel("config.json", f"rope scaling of type {kind!r}")
    meta.put(".rope.scaling.type", str(kind))
    meta.put_float(".rope.scaling.factor", float(factor or 1.0))
    if kind == "yarn":
        original = params.get("original_max_position_embeddings") or config["max_position_embeddings"]
        meta.put(".rope.scaling.original_context_length", int(original))
        names = (
            ("extrapolation_factor", "yarn_ext_factor"),
            ("attention_factor", "yarn_attn_factor"),
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
        )
        for key, target in names:
            if params.get(key) is not None:
                meta.put_float(f".rope.scaling.{target}", params[key])
