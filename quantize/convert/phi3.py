"""Phi-3, Phi-3.5 mini and Phi-4: q, k and v in one tensor, gate and up in another, two sets of rotary factors."""

import math
from collections.abc import Iterator

import numpy as np

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import LAYER, Config, Rules, decoder_recipe, rope
from quantize.convert.tensor_map import Array, OutTensor, Recipe
from quantize.errors import BadFile, UnsupportedModel

ARCHITECTURES = ("Phi3ForCausalLM",)


def recipe(source: Checkpoint, config: Config) -> Recipe:
    """How a checkpoint of this family becomes a GGUF file."""
    names = {**LAYER, "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
    rules = Rules(layer_names=names, ignores_window=False)
    made = decoder_recipe(source, config, "phi3", rules, heads=False, theta=None)
    params = rope(config)
    partial = float(params.get("partial_rotary_factor", 1.0))
    rotary = int(partial * config["hidden_size"]) // int(config["num_attention_heads"])
    original = int(params.get("original_max_position_embeddings") or config["max_position_embeddings"])
    meta = made.metadata
    meta.put(".rope.scaling.original_context_length", original)
    meta.put(".rope.dimension_count", rotary)
    meta.put_float(".rope.freq_base", params.get("rope_theta", 10_000.0))
    # Zero tells Phi-4, which has no window, from the others.
    meta.put(".attention.sliding_window", int(config.get("sliding_window") or 0))
    if params.get("long_factor"):
        meta.put_float(".rope.scaling.attn_factor", _attention_factor(config, original))
        made.tensors += [_factors(source, params, kind, rotary // 2) for kind in ("long", "short")]
    return made


def _attention_factor(config: Config, original: int) -> float:
    """How much attention is sharpened for the longer context."""
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
