"""Gemma 2: soft caps, sliding windows, norms before and after each part, stored less one."""

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import (
    LAYER,
    Config,
    Rules,
    common_metadata,
    decoder_tensors,
    head_metadata,
)
from quantize.convert.recipe import Metadata, Recipe

ARCHITECTURES = ("Gemma2ForCausalLM",)
GGUF_ARCHITECTURE = "gemma2"
LAYER_NAMES = {
    **LAYER,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def recipe(source: Checkpoint, config: Config) -> Recipe:
    """How a checkpoint of this family becomes a GGUF file. The head is always the embedding."""
    config = {**config, "tie_word_embeddings": True}
    tensors, notes = decoder_tensors(source, config, Rules(layer_names=LAYER_NAMES, shifted_norms=True))
    meta = Metadata(GGUF_ARCHITECTURE)
    common_metadata(meta, config)
    head_metadata(meta, config)
    # Defaults: what transformers' Gemma2Config takes where the file is silent.
    meta.put_float(".attn_logit_softcapping", config.get("attn_logit_softcapping", 50.0))
    meta.put_float(".final_logit_softcapping", config.get("final_logit_softcapping", 30.0))
    meta.put(".attention.sliding_window", int(config.get("sliding_window", 4096)))
    return Recipe(meta, tensors, notes)
