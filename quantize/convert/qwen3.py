"""Qwen3: norms on the queries and keys of each head."""

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import (
    Config,
    Rules,
    common_metadata,
    decoder_tensors,
    head_metadata,
    rope_metadata,
)
from quantize.convert.recipe import Metadata, Recipe

ARCHITECTURES = ("Qwen3ForCausalLM",)
GGUF_ARCHITECTURE = "qwen3"


def recipe(source: Checkpoint, config: Config) -> Recipe:
    """How a checkpoint of this family becomes a GGUF file."""
    tensors, notes = decoder_tensors(source, config, Rules())
    meta = Metadata(GGUF_ARCHITECTURE)
    common_metadata(meta, config)
    head_metadata(meta, config)
    rope_metadata(meta, config)
    return Recipe(meta, tensors, notes)
