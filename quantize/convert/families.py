"""The families this converter knows, by the name of the architecture in config.json."""

from collections.abc import Callable

from quantize.convert import bert, gemma2, gemma3, llama, phi3, qwen2, qwen3, qwen3_moe, smollm3
from quantize.convert.checkpoint import Checkpoint, text_config
from quantize.convert.decoder import Config
from quantize.convert.llama_cpp import supported_architectures
from quantize.convert.tensor_map import Recipe
from quantize.errors import BadFile, ConverterNeeded, UnsupportedModel

_FAMILIES = (bert, llama, qwen2, qwen3, qwen3_moe, gemma2, gemma3, phi3, smollm3)
_BY_NAME: dict[str, Callable[[Checkpoint, Config], Recipe]] = {
    name: family.recipe for family in _FAMILIES for name in family.ARCHITECTURES
}
SUPPORTED = tuple(sorted(_BY_NAME))


def architecture(source: Checkpoint) -> str:
    """The architecture's name.

    Raises: ConverterNeeded: only llama.cpp's converter knows it. UnsupportedModel: nobody does, or its weights are
    already quantized.
    """
    names = source.config.get("architectures") or []
    name = names[0] if isinstance(names, list) and names else None
    if name not in _BY_NAME:
        if isinstance(name, str) and name in supported_architectures():
            raise ConverterNeeded(str(source.folder), name)
        unknown = f"neither this converter nor llama.cpp's own knows the architecture {str(name)[:80]!r}"
        raise UnsupportedModel(str(source.folder), unknown, SUPPORTED)
    method = (source.config.get("quantization_config") or {}).get("quant_method")
    if method:
        raise UnsupportedModel(str(source.folder), f"its weights are already quantized ({method})")
    return str(name)


def model_recipe(source: Checkpoint) -> Recipe:
    """How this folder becomes a GGUF file. Raises: UnsupportedModel. BadFile, BadWeights: it is damaged."""
    name = architecture(source)
    try:
        return _BY_NAME[name](source, text_config(source.config))
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(str(source.folder / "config.json"), f"missing or wrong: {error}") from error
