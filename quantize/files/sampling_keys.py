"""What model files recommend for sampling: the keys of GGUF and of transformers' generation_config.json."""

import math
from collections.abc import Mapping
from typing import Final

Value = float | int

# What others than the request may decide, with the bounds of the request's own fields.
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0, 5),
    "top_k": (0, 1 << 20),
    "top_p": (0.001, 1),
    "min_p": (0, 1),
    "typical_p": (0.001, 1),
    "repeat_penalty": (0.001, 10),
    "repeat_last_n": (0, 1 << 20),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "mirostat": (0, 2),
    "mirostat_tau": (0.001, 100),
    "mirostat_eta": (0.001, 1),
}
_WHOLE: Final = frozenset({"top_k", "repeat_last_n", "mirostat"})
# Names in a GGUF file (`general.sampling.*`) and in transformers' generation_config.json.
GGUF_NAMES: Final = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
GENERATION_CONFIG_NAMES: Final = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repeat_penalty",
}


def checked(values: Mapping[str, object], names: Mapping[str, str]) -> dict[str, Value]:
    """What a stranger's file recommends, under our names; what is no number or out of bounds is left out."""
    found: dict[str, Value] = {}
    for theirs, ours in names.items():
        value = values.get(theirs)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        if ours == "repeat_last_n" and value == -1:  # llama.cpp: the whole context
            value = BOUNDS[ours][1]
        low, high = BOUNDS[ours]
        if low <= value <= high:
            found[ours] = int(value) if ours in _WHOLE else round(float(value), 6)
    return found


def from_gguf(metadata: Mapping[str, object]) -> dict[str, Value]:
    """What a GGUF file's header recommends."""
    return checked(metadata, {f"general.sampling.{theirs}": ours for theirs, ours in GGUF_NAMES.items()})
