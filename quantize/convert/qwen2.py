"""Qwen2 and Qwen2.5: biases on q, k and v."""

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import Config, Rules, common_metadata, decoder_tensors, rope_metadata
from quantize.convert.recipe import Metadata, Recipe

ARCHITECTURES = ("Qwen2ForCausalLM",)
GGUF_ARCHITECTURE = "qwen2"


def recipe(source: Checkpoint, config: Config) -> Recipe:
    """How a checkpoint of this family becomes a GGUF file."""
    tensors, notes = decoder_tensors(source, config, Rules())
    meta = Metadata(GGUF_ARCHITECTURE)
    common_metadata(meta, config)
    rope_metadata(meta, config)
    return Recipe(meta, tensors, notes)
