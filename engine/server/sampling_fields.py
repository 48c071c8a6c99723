"""Sampling fields that the OpenAI and the Ollama protocol have under the same names and bounds."""

from typing import Annotated, Literal

from pydantic import Field

from engine.server.body import Body

Probability = Annotated[float, Field(ge=0, le=1)]


class SharedSampling(Body):
    """How tokens are drawn and where an answer ends. None and absence: the default."""

    temperature: Annotated[float, Field(ge=0, le=5)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    min_p: Probability | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: Annotated[float, Field(gt=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None

    def stops(self) -> tuple[str, ...]:
        """Stop strings as a tuple."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(s for s in stop if s)
