"""Qwen3: norms on the queries and keys of each head."""

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import Config, decoder_recipe
from quantize.convert.tensor_map import Recipe

ARCHITECTURES = ("Qwen3ForCausalLM",)


def recipe(source: Checkpoint, config: Config) -> Recipe:
    """How a checkpoint of this family becomes a GGUF file."""
    return decoder_recipe(source, config, "qwen3")
