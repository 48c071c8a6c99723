"""Gemma 2: soft caps, sliding windows, norms before and after each part, stored less one."""

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import LAYER, Config, Rules, decoder_recipe, head_dim
from quantize.convert.tensor_map import Recipe
from quantize.errors import UnsupportedModel

ARCHITECTURES = ("Gemma2ForCausalLM",)
LAYER_NAMES = {
    **LAYER,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def check_attention_scale(source: Checkpoint, config: Config, large_layers: int) -> None:
    """Raises: UnsupportedModel: attention is scaled in a way the runtime has no setting for.

    llama.cpp divides by the root of the head's length, in the largest model of a generation (by its number of
    layers) by that of width over heads. Source: src/models/gemma2.cpp, gemma3.cpp.
    """
    wanted = float(config.get("query_pre_attn_scalar", 256.0))
    large = int(config["num_hidden_layers"]) == large_layers
    applied = config["hidden_size"] / config["num_attention_heads"] if large else float(head_dim(config))
    if wanted != applied:
        reason = f"query_pre_attn_scalar is {wanted:g}, the runtime would use {applied:g}"
        raise UnsupportedModel(str(source.folder), reason)


def recipe(source: Checkpoint, config: Config) -> Recipe:
    """How a checkpoint of this family becomes a GGUF file. The head is always the embedding."""
    config = {**config, "tie_word_embeddings": True}
    check_attention_scale(source, config, large_layers=46)
    rules = Rules(layer_names=LAYER_NAMES, shifted_norms=True, ignores_window=False)
    made = decoder_recipe(source, config, "gemma2", rules, theta=None)
    meta = made.metadata
    # Defaults: what transformers' Gemma2Config takes where the file is silent.
    meta.put_float(".attn_logit_softcapping", config.get("attn_logit_softcapping", 50.0))
    meta.put_float(".final_logit_softcapping", config.get("final_logit_softcapping", 30.0))
    meta.put(".attention.sliding_window", int(config.get("sliding_window", 4096)))
    return made
