"""Request bodies of the OpenAI protocol, with the sampling fields that local servers share."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from engine.errors import InputFault
from engine.server.body import Body
from engine.types import SamplingParams

Probability = Annotated[float, Field(ge=0, le=1)]
MAX_CHOICES = 16


class StreamOptions(Body):
    """What a stream tells besides the answer."""

    include_usage: bool = False


# llama-server's names of the stages; both spellings of the typical filter are known there.
SamplerName = Literal[
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "typical_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
    "infill",
]


class LoraChoice(Body):
    """One adapter that the model was loaded with, and how strongly it works."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    scale: Annotated[float, Field(ge=-10, le=10)] = 1.0


class SamplingBody(Body):
    """Sampling fields of chat and text completions. None and absence mean the default."""

    temperature: Annotated[float, Field(ge=0, le=5)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    min_p: Probability | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_n_sigma: Annotated[float, Field(ge=-1, le=100)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repeat_last_n: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Probability | None = None
    dry_multiplier: Annotated[float, Field(ge=0, le=10)] | None = None
    dry_base: Annotated[float, Field(ge=1, le=10)] | None = None
    dry_allowed_length: Annotated[int, Field(ge=1, le=1000)] | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, le=1 << 20)] | None = None
    dry_sequence_breakers: Annotated[list[str], Field(max_length=32)] | None = None
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: Annotated[float, Field(gt=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Field(gt=0, le=1)] | None = None
    dynatemp_range: Annotated[float, Field(ge=0, le=5)] | None = None
    dynatemp_exponent: Annotated[float, Field(ge=0, le=10)] | None = None
    adaptive_target: Annotated[float, Field(ge=-1, le=1)] | None = None
    adaptive_decay: Annotated[float, Field(ge=0, le=0.99)] | None = None
    samplers: Annotated[list[SamplerName], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    speculate: bool | None = None
    context_shift: bool | None = None
    lora: Annotated[list[LoraChoice], Field(max_length=8)] | None = None

    def sampling(self, choice: int = 0) -> SamplingParams:
        """Sampling parameters of one choice; with a seed, each choice gets its own."""
        names = SamplingParams.__struct_fields__
        given = {k: v for k in names if k in type(self).model_fields and (v := getattr(self, k)) is not None}
        if self.seed is not None:
            given["seed"] = (self.seed + choice) % (1 << 32)
        if self.logit_bias is not None:
            given["logit_bias"] = {_token_id(k): v for k, v in self.logit_bias.items()}
        if self.dry_sequence_breakers is not None:
            given["dry_sequence_breakers"] = tuple(self.dry_sequence_breakers)
        if self.samplers is not None:
            given["order"] = tuple("typical_p" if name == "typ_p" else name for name in self.samplers)
        return SamplingParams(**given)

    def adapters(self) -> tuple[tuple[str, float], ...]:
        """LoRA adapters as the engine takes them."""
        return tuple((choice.name, choice.scale) for choice in self.lora or ())

    def stops(self) -> tuple[str, ...]:
        """Stop strings as a tuple."""
        if self.stop is None:
            return ()
        return tuple(s for s in ([self.stop] if isinstance(self.stop, str) else self.stop) if s)

    @property
    def wants_usage(self) -> bool:
        """The stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


def _token_id(key: str) -> int:
    if not key.isdecimal():
        raise InputFault(f"logit_bias: {key!r} is not a token id.", "logit_bias")
    return int(key)


class ChatMessage(Body):
    """One message; content may be text, parts, or null beside tool calls."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


# Chat fields that ask for something this server does not do; going on without it would be another answer.
NOT_POSSIBLE: Final = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "no speech is made here",
    "web_search_options": "this server does not search the web",
}


class ChatRequest(SamplingBody):
    """POST /v1/chat/completions."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=100_000)]
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=512)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    reasoning_effort: str | None = None
    chat_template: Annotated[str, Field(max_length=1 << 20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    modalities: list[Literal["text"]] | None = None

    def refuse_impossible(self) -> None:
        """Raises: InputFault: a field asks for what is not done here."""
        for name, reason in NOT_POSSIBLE.items():
            if (self.model_extra or {}).get(name) is not None:
                raise InputFault(f"{name} is not supported: {reason}.", name)
        if self.top_logprobs is not None and not self.logprobs:
            raise InputFault("top_logprobs needs logprobs: true.", "top_logprobs")

    @property
    def answer_limit(self) -> int | None:
        """Tokens the answer may have."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionRequest(SamplingBody):
    """POST /v1/completions."""

    model: str
    prompt: (
        str
        | Annotated[list[int], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=64)]
        | Annotated[list[list[int]], Field(min_length=1, max_length=64)]
    )
    suffix: str | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    response_format: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None

    def prompts(self) -> list[str | list[int]]:
        """The prompts as a list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[t for t in self.prompt if isinstance(t, int)]]
        return [p for p in self.prompt if isinstance(p, str | list)]
