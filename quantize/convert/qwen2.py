"""Qwen2 and Qwen2.5: biases on q, k and v."""

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import Config, decoder_recipe
from quantize.convert.tensor_map import Recipe

ARCHITECTURES = ("Qwen2ForCausalLM",)


def recipe(source: Checkpoint, config: Config) -> Recipe:
    """How a checkpoint of this family becomes a GGUF file."""
    return decoder_recipe(source, config, "qwen2", heads=False)
