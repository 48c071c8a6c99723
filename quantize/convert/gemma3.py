"""Gemma 3: as Gemma 2 without soft caps, with norms on q and k and two rotary bases. Text only."""

from typing import Any

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import Config, Rules, decoder_recipe
from quantize.convert.gemma2 import LAYER_NAMES, check_attention_scale
from quantize.convert.tensor_map import Recipe
from quantize.convert.vocabulary import vocabulary_size

ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
# What transformers' Gemma3TextConfig takes where the file is silent.
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


def recipe(source: Checkpoint, config: Config) -> Recipe:
    """How a checkpoint of this family becomes a GGUF file; rows beyond the vocabulary are dropped."""
    config = {**_DEFAULTS, **config, "tie_word_embeddings": True}
    check_attention_scale(source, config, large_layers=62)
    rules = Rules(
        layer_names=LAYER_NAMES,
        ignores_window=False,
        shifted_norms=True,
        vocab_rows=vocabulary_size(source, int(config["vocab_size"])),
    )
    made = decoder_recipe(source, config, "gemma3", rules, theta=1_000_000.0)
    meta = made.metadata
    local = config.get("rope_parameters") or {}
    local_theta = local.get("sliding_attention", {}).get("rope_theta", config["rope_local_base_freq"])
    meta.put_float(".rope.freq_base_swa", local_theta)
    if config.get("final_logit_softcapping"):
        meta.put_float(".final_logit_softcapping", config["final_logit_softcapping"])
    if config.get("sliding_window_pattern") != 1:
        meta.put(".attention.sliding_window", int(config["sliding_window"]))
    return made
