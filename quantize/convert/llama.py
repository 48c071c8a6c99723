"""Llama, Mistral and Mixtral."""

import math
from collections.abc import Iterator

import numpy as np

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import LAYER, Config, Rules, decoder_recipe, head_dim, rope
from quantize.convert.tensor_map import Array, OutTensor, Recipe

ARCHITECTURES = ("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM")


def recipe(source: Checkpoint, config: Config, gguf_architecture: str = "llama") -> Recipe:
    """How a checkpoint of this family, or of one that differs in name alone, becomes a GGUF file."""
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
    made = decoder_recipe(source, config, gguf_architecture, rules, heads=explicit_heads)
    meta = made.metadata
    meta.put(".vocab_size", int(config["vocab_size"]))
    meta.put(".rope.dimension_count", head_dim(config))
    if num_experts:
        meta.put(".expert_count", num_experts)
        meta.put(".expert_used_count", int(config["num_experts_per_tok"]))
    if rope(config).get("rope_type") == "llama3":
        made.tensors.append(_rope_factors(config))
    return made


def _rope_factors(config: Config) -> OutTensor:
    """What each frequency is divided by in Llama 3.1 and later: one for short waves, `factor` for long ones."""
    params, dim = rope(config), head_dim(config)
    # In single precision throughout, as the reference computes them.
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
