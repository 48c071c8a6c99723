"""Sampling fields with the same names and bounds in OpenAI's and Ollama's protocol."""

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from engine.server.body import Body
from quantize.files.sampling_keys import SAMPLING


def bounds(name: str) -> Any:
    """The bounds of a sampling field."""
    row = SAMPLING[name]
    return Field(gt=row.minimum, le=row.maximum) if row.above else Field(ge=row.minimum, le=row.maximum)


# OpenAI allows 4, llama-server and Ollama any number; programs for role play send one for each name.
MAX_STOPS: Final = 64


def _all_tokens(top_k: object) -> object:
    """0 for -1, which vLLM's and Ollama's clients write for all tokens."""
    return 0 if type(top_k) is int and top_k == -1 else top_k


class SharedSampling(Body):
    """Sampling parameters and stop strings. None or a missing field means the default."""

    temperature: Annotated[float, bounds("temperature")] | None = None
    top_p: Annotated[float, bounds("top_p")] | None = None
    top_k: Annotated[int, BeforeValidator(_all_tokens), bounds("top_k")] | None = None
    min_p: Annotated[float, bounds("min_p")] | None = None
    typical_p: Annotated[float, bounds("typical_p")] | None = None
    repeat_penalty: Annotated[float, bounds("repeat_penalty")] | None = None
    presence_penalty: Annotated[float, bounds("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, bounds("frequency_penalty")] | None = None
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: Annotated[float, bounds("mirostat_tau")] | None = None
    mirostat_eta: Annotated[float, bounds("mirostat_eta")] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None

    def stops(self) -> tuple[str, ...]:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(s for s in stop if s)
