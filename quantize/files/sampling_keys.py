"""Sampling fields, one row each: bounds, defaults of other programs, names in files and on other servers."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

Value = float | int
# Minimum for fields with an excluded lower bound, if a file or the user sets the value.
_LEAST: Final = 0.001


class SamplingField(NamedTuple):
    """One sampling field. `above` excludes the minimum itself; `neutral` switches the field off.

    `gguf` is its name in a GGUF file (`general.sampling.*`), `hf` in transformers' generation_config.json, `vllm`
    in requests to vLLM and SGLang. `openai` means that it is in OpenAI's protocol and every server supports it.
    `llama_cpp` and `ollama` are their defaults.
    """

    minimum: float
    maximum: float
    above: bool = False
    whole: bool = False
    neutral: float = 0
    gguf: str = ""
    hf: str = ""
    vllm: str = ""
    openai: bool = False
    llama_cpp: Value | None = None
    ollama: Value | None = None


# Fields that files and settings can set, not only requests, in display order. Source: llama.cpp, common/common.h,
# struct common_params_sampling; vLLM SamplingParams; SGLang sampling_params.md.
SAMPLING: Final[Mapping[str, SamplingField]] = {
    "temperature": SamplingField(
        0, 5, neutral=1, gguf="temp", hf="temperature", openai=True, llama_cpp=0.8, ollama=0.8
    ),
    "top_k": SamplingField(0, 1 << 20, whole=True, gguf="top_k", hf="top_k", vllm="top_k", llama_cpp=40, ollama=40),
    "top_p": SamplingField(
        0, 1, above=True, neutral=1, gguf="top_p", hf="top_p", openai=True, llama_cpp=0.95, ollama=0.9
    ),
    "min_p": SamplingField(0, 1, gguf="min_p", hf="min_p", vllm="min_p", llama_cpp=0.05, ollama=0.0),
    "typical_p": SamplingField(0, 1, above=True, neutral=1, hf="typical_p"),
    "repeat_penalty": SamplingField(
        0.01, 10, neutral=1, gguf="penalty_repeat", hf="repetition_penalty", vllm="repetition_penalty", ollama=1.1
    ),
    "repeat_last_n": SamplingField(0, 1 << 20, whole=True, neutral=64, gguf="penalty_last_n"),
    "presence_penalty": SamplingField(-2, 2, openai=True),
    "frequency_penalty": SamplingField(-2, 2, openai=True),
    "xtc_probability": SamplingField(0, 1, gguf="xtc_probability"),
    "xtc_threshold": SamplingField(0, 1, neutral=0.1, gguf="xtc_threshold"),
    "mirostat": SamplingField(0, 2, whole=True, gguf="mirostat"),
    "mirostat_tau": SamplingField(0, 100, above=True, neutral=5, gguf="mirostat_tau"),
    "mirostat_eta": SamplingField(0, 1, above=True, neutral=0.1, gguf="mirostat_eta"),
}
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    name: (_LEAST if row.above else row.minimum, row.maximum) for name, row in SAMPLING.items()
}
GGUF_NAMES: Final = {row.gguf: name for name, row in SAMPLING.items() if row.gguf}
GENERATION_CONFIG_NAMES: Final = {row.hf: name for name, row in SAMPLING.items() if row.hf}


def checked(values: Mapping[str, object], names: Mapping[str, str]) -> dict[str, Value]:
    """Recommended values of an untrusted file, under Tessera's names; invalid values are omitted."""
    valid: dict[str, Value] = {}
    for theirs, ours in names.items():
        value = values.get(theirs)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        if ours == "repeat_last_n" and value == -1:  # llama.cpp: the whole context
            value = BOUNDS[ours][1]
        low, high = BOUNDS[ours]
        if low <= value <= high:
            valid[ours] = int(value) if SAMPLING[ours].whole else round(float(value), 6)
    return valid


def from_gguf(metadata: Mapping[str, object]) -> dict[str, Value]:
    """The values that a GGUF file's header recommends."""
    return checked(metadata, {f"general.sampling.{theirs}": ours for theirs, ours in GGUF_NAMES.items()})
