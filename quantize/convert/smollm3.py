"""SmolLM3: Llama whose every fourth layer has no rotary positions."""

from quantize.convert import llama
from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import Config
from quantize.convert.tensor_map import Recipe
from quantize.errors import UnsupportedModel

ARCHITECTURES = ("SmolLM3ForCausalLM",)
_NO_ROPE_STEP = 4  # Source: llama.cpp, src/models/smollm3.cpp, which reads no such number from the file


def recipe(source: Checkpoint, config: Config) -> Recipe:
    """How a checkpoint of this family becomes a GGUF file.

    Raises: UnsupportedModel: llama.cpp would compute something else.
    """
    layers = int(config["num_hidden_layers"])
    expected = [int((n + 1) % _NO_ROPE_STEP != 0) for n in range(layers)]
    found = config.get("no_rope_layers") or expected
    if list(found) != expected:
        reason = f"its layers without positions are not every {_NO_ROPE_STEP}th, which llama.cpp takes for granted"
        raise UnsupportedModel(str(source.folder), reason)
    if config.get("use_sliding_window"):
        raise UnsupportedModel(
            str(source.folder), "it has a sliding window, which llama.cpp leaves out for SmolLM3"
        )
    return llama.recipe(source, config, "smollm3")
