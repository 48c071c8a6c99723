"""The families that this converter supports, by the architecture's name in config.json."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from quantize.convert.checkpoint import Checkpoint, text_config
from quantize.convert.decoder import LAYER, Config, Rules, decoder_recipe, head_dim, rope
from quantize.convert.llama_cpp import supported_architectures
from quantize.convert.tensor_map import Array, Metadata, OutTensor, Recipe
from quantize.convert.vocabulary import vocabulary_size
from quantize.errors import BadFile, ConverterNeeded, UnsupportedModel
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


def bert(source: Checkpoint, config: Config) -> Recipe:
    """The recipe for converting a BERT checkpoint to GGUF.

    Raises: UnsupportedModel: an activation, positions or a head that llama.cpp's BERT does not support. BadFile.
    """
    ranks = RANKER in config["architectures"]
    expected = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise UnsupportedModel(str(source.folder), f"{key} is {config[key]!r}; only {value!r} can be run")
    tensors, unused = [], []
    for full in source.names:
        name = _target(full, ranks=ranks)
        if name is None:
            unused.append(full)
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
    notes = [f"{len(unused)} tensors that embeddings do not need were left out"] if unused else []
    if ranks:
        notes.append("llama.cpp gives query and document one segment: scores are not quite the model's; ONNX's are")
    return Recipe(meta, sorted(tensors, key=_order), notes)


def _target(full: str, *, ranks: bool) -> str | None:
    """GGUF's name of a tensor; empty if it is derived, None if it is not needed.

    Raises: UnsupportedModel: no rule for it.
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

    wants_f32, dtypes = len(info.shape) == 1 or name in _ADDED, frozenset({info.dtype})
    return OutTensor(name, tuple(reversed(info.shape)), chunks, keep_f32=wants_f32, dtypes=dtypes)


def _check(source: Checkpoint, config: Config, names: set[str], *, ranks: bool) -> None:
    """Check the tensors. Raises: BadFile: a tensor is missing. UnsupportedModel: a head with several scores."""
    needed = {f"{name}.weight" for name in _OUTER.values()}
    for layer in range(int(config["num_hidden_layers"])):
        needed |= {f"blk.{layer}.{name}.{ending}" for name in _LAYER.values() for ending in ("weight", "bias")}
    if ranks:
        needed |= {f"{name}.{ending}" for name in _HEAD.values() for ending in ("weight", "bias")}
        scores = source.info("classifier.weight").shape[0] if source.has("classifier.weight") else 0
        if scores > 1:
            raise UnsupportedModel(str(source.folder), f"its head has {scores} classes; a reranker has one score")
    missing = sorted(needed - names)
    if missing:
        raise BadFile(str(source.folder), f"{len(missing)} tensors are missing, such as {missing[0]}")


def _pooling(source: Checkpoint) -> int:
    """The pooling type from the folder's sentence-transformers module, by default the mean."""
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


def _llama(source: Checkpoint, config: Config, gguf_architecture: str = "llama") -> Recipe:
    """Llama, Mistral and Mixtral, or a family that differs only in name."""
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    num_experts = int(config.get("num_local_experts") or 0)
    rules = Rules(
        layer_names={**LAYER, "block_sparse_moe.gate": "ffn_gate_inp"},
        rotary_heads={"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads},
        expert_names={"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps"},
        num_experts=num_experts,
    )
    explicit_heads = bool(config.get("head_dim") or not num_experts)
    recipe = decoder_recipe(source, config, gguf_architecture, rules, heads=explicit_heads)
    meta = recipe.metadata
    meta.put(".vocab_size", int(config["vocab_size"]))
    meta.put(".rope.dimension_count", head_dim(config))
    if num_experts:
        meta.put(".expert_count", num_experts)
        meta.put(".expert_used_count", int(config["num_experts_per_tok"]))
    if rope(config).get("rope_type") == "llama3":
        recipe.tensors.append(_rope_factors(config))
    return recipe


def _rope_factors(config: Config) -> OutTensor:
    """Divisors of the rotary frequencies for Llama 3.1 and later: 1 for short waves, `factor` for long ones."""
    params, dim = rope(config), head_dim(config)
    # In single precision, as in the reference implementation.
    one = np.float32(1.0)
    base, factor = np.float32(params.get("rope_theta", 10_000.0)), np.float32(params.get("factor", 8.0))
    low, high = np.float32(params.get("low_freq_factor", 1.0)), np.float32(params.get("high_freq_factor", 4.0))
    context = np.float32(params.get("original_max_position_embeddings", 8192))
    frequencies = one / np.power(base, np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    factors = []
    for frequency in frequencies:
        wavelength = np.float32(2 * math.pi) / frequency
        if wavelength < context / high:
            factors.append(one)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(one / ((one - smooth) / factor + smooth))
    values = np.asarray(factors, np.float32)[None, :]

    def chunks() -> Iterator[Array]:
        yield values

    return OutTensor("rope_freqs.weight", (len(factors),), chunks, keep_f32=True)


def _qwen2(source: Checkpoint, config: Config) -> Recipe:
    """Qwen2 and Qwen2.5: biases on q, k and v."""
    return decoder_recipe(source, config, "qwen2", heads=False)


def _qwen3(source: Checkpoint, config: Config) -> Recipe:
    """Qwen3: norms on the queries and keys of each head."""
    return decoder_recipe(source, config, "qwen3")


def _qwen3_moe(source: Checkpoint, config: Config) -> Recipe:
    """Qwen3 with routed experts."""
    _check_routing(source, config)
    num_experts = int(config.get("num_experts") or config["num_local_experts"])
    rules = Rules(
        layer_names={**LAYER, "mlp.gate": "ffn_gate_inp"},
        expert_names={"gate_proj": "ffn_gate_exps", "down_proj": "ffn_down_exps", "up_proj": "ffn_up_exps"},
        num_experts=num_experts,
    )
    recipe = decoder_recipe(source, config, "qwen3moe", rules)
    recipe.metadata.put(".expert_count", num_experts)
    recipe.metadata.put(".expert_used_count", int(config["num_experts_per_tok"]))
    recipe.metadata.put(".expert_feed_forward_length", int(config["moe_intermediate_size"]))
    return recipe


def _check_routing(source: Checkpoint, config: Config) -> None:
    """Check the expert routing. Raises: UnsupportedModel: the runtime does not support it.

    Source: llama.cpp, src/models/qwen3moe.cpp: chosen experts are normalized, every layer has experts.
    """
    if not config.get("norm_topk_prob", False):
        raise UnsupportedModel(str(source.folder), "norm_topk_prob is false; the runtime always normalizes")
    if config.get("mlp_only_layers") or int(config.get("decoder_sparse_step") or 1) != 1:
        raise UnsupportedModel(str(source.folder), "some layers have no experts")


_NO_ROPE_STEP = 4  # Source: llama.cpp, src/models/smollm3.cpp, which does not read this number from the file


def _smollm3(source: Checkpoint, config: Config) -> Recipe:
    """SmolLM3: Llama with no rotary positions in every fourth layer.

    Raises: UnsupportedModel: llama.cpp would compute something else.
    """
    layers = int(config["num_hidden_layers"])
    expected = [int((n + 1) % _NO_ROPE_STEP != 0) for n in range(layers)]
    stated = config.get("no_rope_layers") or expected
    if list(stated) != expected:
        reason = f"its layers without positions are not every {_NO_ROPE_STEP}th, which llama.cpp takes for granted"
        raise UnsupportedModel(str(source.folder), reason)
    if config.get("use_sliding_window"):
        raise UnsupportedModel(
            str(source.folder), "it has a sliding window, which llama.cpp leaves out for SmolLM3"
        )
    return _llama(source, config, "smollm3")


LAYER_NAMES = {
    **LAYER,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def check_attention_scale(source: Checkpoint, config: Config, large_layers: int) -> None:
    """Check the attention scale. Raises: UnsupportedModel: the runtime does not support it.

    llama.cpp divides by the square root of the head length. In the largest model of a generation (identified by its
    number of layers) it uses width / heads instead. Source: src/models/gemma2.cpp, gemma3.cpp.
    """
    stated = float(config.get("query_pre_attn_scalar", 256.0))
    large = int(config["num_hidden_layers"]) == large_layers
    applied = config["hidden_size"] / config["num_attention_heads"] if large else float(head_dim(config))
    if stated != applied:
        reason = f"query_pre_attn_scalar is {stated:g}, the runtime would use {applied:g}"
        raise UnsupportedModel(str(source.folder), reason)


def _gemma2(source: Checkpoint, config: Config) -> Recipe:
    """Gemma 2: soft caps, sliding windows, norms before and after each part, stored minus one.

    The head is always the embedding.
    """
    config = {**config, "tie_word_embeddings": True}
    check_attention_scale(source, config, large_layers=46)
    rules = Rules(layer_names=LAYER_NAMES, shifted_norms=True, ignores_window=False)
    recipe = decoder_recipe(source, config, "gemma2", rules, theta=None)
    meta = recipe.metadata
    # Defaults of transformers' Gemma2Config.
    meta.put_float(".attn_logit_softcapping", config.get("attn_logit_softcapping", 50.0))
    meta.put_float(".final_logit_softcapping", config.get("final_logit_softcapping", 30.0))
    meta.put(".attention.sliding_window", int(config.get("sliding_window", 4096)))
    return recipe


# Defaults of transformers' Gemma3TextConfig.
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "rope_local_base_freq": 10_000.0,
    "vocab_size": 262_208,
}


def _gemma3(source: Checkpoint, config: Config) -> Recipe:
    """Gemma 3: like Gemma 2 without soft caps, with norms on q and k and two rotary bases.

    Text only; rows beyond the vocabulary are dropped.
    """
    config = {**_DEFAULTS, **config, "tie_word_embeddings": True}
    check_attention_scale(source, config, large_layers=62)
    rules = Rules(
        layer_names=LAYER_NAMES,
        ignores_window=False,
        shifted_norms=True,
        vocab_rows=vocabulary_size(source, int(config["vocab_size"])),
    )
    recipe = decoder_recipe(source, config, "gemma3", rules, theta=1_000_000.0)
    meta = recipe.metadata
    local = config.get("rope_parameters") or {}
    local_theta = local.get("sliding_attention", {}).get("rope_theta", config["rope_local_base_freq"])
    meta.put_float(".rope.freq_base_swa", local_theta)
    if config.get("final_logit_softcapping"):
        meta.put_float(".final_logit_softcapping", config["final_logit_softcapping"])
    if config.get("sliding_window_pattern") != 1:
        meta.put(".attention.sliding_window", int(config["sliding_window"]))
    return recipe


def _phi3(source: Checkpoint, config: Config) -> Recipe:
    """Phi-3, Phi-3.5 mini and Phi-4: q, k and v in one tensor, gate and up in another, two rotary tables."""
    names = {**LAYER, "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
    rules = Rules(layer_names=names, ignores_window=False)
    recipe = decoder_recipe(source, config, "phi3", rules, heads=False, theta=None)
    params = rope(config)
    partial = float(params.get("partial_rotary_factor", 1.0))
    rotary = int(partial * config["hidden_size"]) // int(config["num_attention_heads"])
    original = int(params.get("original_max_position_embeddings") or config["max_position_embeddings"])
    meta = recipe.metadata
    meta.put(".rope.scaling.original_context_length", original)
    meta.put(".rope.dimension_count", rotary)
    meta.put_float(".rope.freq_base", params.get("rope_theta", 10_000.0))
    # llama.cpp recognizes Phi-4, which has no window, by the zero.
    meta.put(".attention.sliding_window", int(config.get("sliding_window") or 0))
    if params.get("long_factor"):
        meta.put_float(".rope.scaling.attn_factor", _attention_factor(config, original))
        recipe.tensors += [_factors(source, params, kind, rotary // 2) for kind in ("long", "short")]
    return recipe


def _attention_factor(config: Config, original: int) -> float:
    """The attention scaling factor for the longer context."""
    scale = int(config["max_position_embeddings"]) / original
    kind = str(rope(config).get("rope_type", "")).lower()
    if scale <= 1:
        return 1.0
    if kind in {"su", "longrope"}:
        return math.sqrt(1 + math.log(scale) / math.log(original))
    if kind == "yarn":
        return 0.1 * math.log(scale) + 1.0
    raise UnsupportedModel("config.json", f"rope scaling of type {kind!r}")


def _factors(source: Checkpoint, params: dict[str, object], kind: str, count: int) -> OutTensor:
    values = params.get(f"{kind}_factor")
    if not isinstance(values, list) or len(values) != count:
        raise BadFile(str(source.folder / "config.json"), f"{kind}_factor must hold {count} numbers")
    row = np.asarray(values, np.float32)[None, :]

    def chunks() -> Iterator[Array]:
        yield row

    return OutTensor(f"rope_factors_{kind}.weight", (count,), chunks, keep_f32=True)


_BY_NAME: dict[str, Callable[[Checkpoint, Config], Recipe]] = {
    **dict.fromkeys(ARCHITECTURES, bert),
    "LlamaForCausalLM": _llama,
    "LLaMAForCausalLM": _llama,
    "MistralForCausalLM": _llama,
    "MixtralForCausalLM": _llama,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "SmolLM3ForCausalLM": _smollm3,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma3ForConditionalGeneration": _gemma3,
    "Phi3ForCausalLM": _phi3,
}
SUPPORTED = tuple(sorted(_BY_NAME))


def architecture(source: Checkpoint) -> str:
    """The architecture's name.

    Raises: ConverterNeeded: only llama.cpp's converter supports it. UnsupportedModel: no converter supports it.
    """
    names = source.config.get("architectures") or []
    name = names[0] if isinstance(names, list) and names else None
    if name not in _BY_NAME:
        if isinstance(name, str) and name in supported_architectures():
            raise ConverterNeeded(str(source.folder), name)
        if name is None:
            raise UnsupportedModel(str(source.folder), "its config.json names no architecture", SUPPORTED)
        unknown = f"neither this converter nor llama.cpp's own knows the architecture {str(name)[:80]!r}"
        raise UnsupportedModel(str(source.folder), unknown, SUPPORTED)
    return str(name)


def model_recipe(source: Checkpoint) -> Recipe:
    """The recipe for converting this folder to GGUF. Raises: UnsupportedModel.

    BadFile, BadWeights: it is corrupt.
    """
    name = architecture(source)
    try:
        return _BY_NAME[name](source, text_config(source.config))
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(str(source.folder / "config.json"), f"missing or wrong: {error}") from error
