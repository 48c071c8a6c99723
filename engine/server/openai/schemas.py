"""Request bodies of OpenAI's protocol, with the sampling fields that local servers share."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from engine.core.errors import InputFault
from engine.core.types import SamplingParams
from engine.server.body import ANY, Body, ByType
from engine.server.sampling_fields import SharedSampling, bounds

MAX_CHOICES = 16
# OpenAI's documented default for /v1/completions.
DEFAULT_MAX_TOKENS: Final = 16


# OpenAI's values, and additional ones of templates and other servers.
Effort = Literal["none", "off", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]


Budget = Annotated[int, Field(ge=-1, lt=1 << 31)]


class Thinking(Body):
    """Anthropic's reasoning fields, as LiteLLM and others send them."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Budget | None = None


class Reasoning(Body):
    """OpenRouter's reasoning fields; OpenAI has only `effort`."""

    enabled: bool | None = None
    effort: Effort | None = None
    max_tokens: Budget | None = None


class ChatReasoning(Reasoning):
    """OpenRouter's reasoning fields; `exclude` leaves the reasoning out of the response."""

    exclude: bool | None = None


class StreamOptions(Body):
    """Additional content of a stream."""

    include_usage: bool | None = None


# llama-server's sampler names, including both spellings of the typical filter.
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
    "adaptive_p",
]


class LoraChoice(Body):
    """One adapter that the model was loaded with, and its scale."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    scale: Annotated[float, Field(ge=-10, le=10)] = 1.0


TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
# -1 means unlimited in llama.cpp and LM Studio: until the model stops or the context is full.
TokenLimit = Annotated[int, Field(ge=-1, lt=1 << 31)]


class SamplerFields(SharedSampling):
    """Sampling and stop fields of all OpenAI routes. None or a missing field means the default."""

    top_n_sigma: Annotated[float, Field(ge=-1, le=100)] | None = None
    repetition_penalty: Annotated[float, bounds("repeat_penalty")] | None = None
    repeat_last_n: Annotated[int, bounds("repeat_last_n")] | None = None
    xtc_probability: Annotated[float, bounds("xtc_probability")] | None = None
    xtc_threshold: Annotated[float, bounds("xtc_threshold")] | None = None
    dry_multiplier: Annotated[float, Field(ge=0, le=10)] | None = None
    dry_base: Annotated[float, Field(ge=1, le=10)] | None = None
    dry_allowed_length: Annotated[int, Field(ge=1, le=1000)] | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, le=1 << 20)] | None = None
    dry_sequence_breakers: Annotated[list[str], Field(max_length=32)] | None = None
    dynatemp_range: Annotated[float, Field(ge=0, le=5)] | None = None
    dynatemp_exponent: Annotated[float, Field(ge=0, le=10)] | None = None
    adaptive_target: Annotated[float, Field(ge=-1, le=1)] | None = None
    adaptive_decay: Annotated[float, Field(ge=0, le=0.99)] | None = None
    samplers: Annotated[list[SamplerName], Field(max_length=16)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    ignore_eos: bool | None = None
    speculate: bool | None = None
    context_shift: bool | None = None
    loop_guard: bool | None = None
    priority: Literal["interactive", "side"] | None = None
    deterministic: bool | None = None
    lora: Annotated[list[LoraChoice], Field(max_length=8)] | None = None

    def sampling(self, choice: int = 0) -> dict[str, Any]:
        """The request's sampling values for one choice; with a seed, each choice gets its own seed."""
        names = SamplingParams.__struct_fields__
        values = {k: v for k in names if k in type(self).model_fields and (v := getattr(self, k)) is not None}
        if self.repeat_penalty is None and self.repetition_penalty is not None:  # vLLM's name
            values["repeat_penalty"] = self.repetition_penalty
        seed = 0 if self.seed is None and self.deterministic else self.seed
        if seed is not None:
            values["seed"] = (seed + choice) % (1 << 32)
        if self.logit_bias is not None:
            values["logit_bias"] = self.bias()
        if self.dry_sequence_breakers is not None:
            values["dry_sequence_breakers"] = tuple(self.dry_sequence_breakers)
        if self.samplers is not None:
            # As in llama-server, adaptive sampling is the last stage wherever it is listed.
            names_in_order = (name for name in self.samplers if name != "adaptive_p")
            values["order"] = tuple("typical_p" if name == "typ_p" else name for name in names_in_order)
        return values

    def bias(self) -> dict[int, float]:
        """Bias per token id. Raises: InputFault."""
        return {_token_id(key): value for key, value in (self.logit_bias or {}).items()}

    def adapters(self) -> tuple[tuple[str, float], ...]:
        """LoRA adapters as (name, scale)."""
        return tuple((choice.name, choice.scale) for choice in self.lora or ())

    def common(self) -> dict[str, Any]:
        """Fields that `GenerationRequest` and `ChatQuery` share under the same names."""
        return {
            "stop": self.stops(),
            "ignore_eos": bool(self.ignore_eos),
            "min_tokens": self.min_tokens or 0,
            "stop_token_ids": tuple(self.stop_token_ids or ()),
            "speculate": self.speculate,
            "context_shift": bool(self.context_shift),
            "loop_guard": bool(self.loop_guard),
            "priority": self.priority or "interactive",
            "deterministic": bool(self.deterministic),
            "lora": self.adapters(),
        }


class SamplingBody(SamplerFields):
    """Fields shared by chat and text completions, except sampling."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def ignored(self) -> list[str]:
        """Also lists `stream_options` if the request does not stream."""
        names = super().ignored()
        alone = self.stream_options is not None and not self.stream and "stream_options" not in names
        return [*names, "stream_options"] if alone else names

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def limit_of(*limits: int | None) -> int | None:
    """The first given limit; None (unlimited) if there is none or it is -1."""
    limit = next((value for value in limits if value is not None), None)
    return None if limit is None or limit < 0 else limit


# Longer numbers cannot be token ids.
_ID_DIGITS: Final = 9


def _token_id(key: str) -> int:
    if not key.isdecimal() or len(key) > _ID_DIGITS:
        raise InputFault(f"logit_bias: {key!r} is not a token id.", "logit_bias")
    return int(key)


_CALL: Final = {
    "id": ANY, "type": ANY, "index": ANY, "function": {"name": ANY, "arguments": ANY},
    "custom": {"name": ANY, "input": ANY},
}  # fmt: skip
_PART: Final = ByType(
    {
        "": {"type": ANY, "text": ANY},
        "image_url": {"type": ANY, "image_url": {"url": ANY}},
        "refusal": {"type": ANY, "refusal": ANY},
        "thinking": {"type": ANY, "thinking": ANY},
        "reasoning": {"type": ANY, "reasoning": ANY},
        "file": {"type": ANY, "file": {"filename": ANY, "file_data": ANY}},
    }
)
_TOOL: Final = ByType(
    {
        "": {"type": ANY, "function": {"name": ANY, "description": ANY, "parameters": ANY, "strict": ANY}},
        # The grammar is shown to the model but not enforced, so `format` is reported as ignored.
        "custom": {"type": ANY, "custom": {"name": ANY, "description": ANY, "format": {"type": ANY}}},
    }
)
_NAMED: Final = {"type": ANY, "name": ANY, "function": {"name": ANY}, "custom": {"name": ANY}}
_CHOICE: Final = ByType(
    {
        "": _NAMED,
        "allowed_tools": {
            "type": ANY, "mode": ANY, "tools": {"type": ANY, "name": ANY},
            "allowed_tools": {"mode": ANY, "tools": _NAMED},
        },
    }
)  # fmt: skip
# The schema's name is only a label, and the schema is always strict; other fields are ignored.
_FORMAT: Final = ByType(
    {
        "": {"type": ANY, "regex": ANY, "lark": ANY, "grammar": ANY, "gbnf": ANY, "pattern": ANY},
        "text": {"type": ANY},
        "json_object": {"type": ANY, "schema": ANY},
        "json_schema": {"type": ANY, "schema": ANY, "json_schema": {"name": ANY, "schema": ANY, "strict": ANY}},
    }
)


class ChatMessage(Body):
    """One message; content may be text, parts, or null if there are tool calls."""

    shapes: ClassVar = {"content": _PART, "tool_calls": _CALL}

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


# Unsupported fields that are refused, because ignoring them would give a different kind of response.
NOT_POSSIBLE: Final = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "no speech is made here",
    "web_search_options": "this server does not search the web",
}


class OutputFields(Body):
    """Output format, in the fields of OpenAI, llama-server and vLLM; at most one may be set."""

    shapes: ClassVar[Mapping[str, Any]] = {"response_format": _FORMAT}

    response_format: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1, max_length=1024)] | None = None
    guided_grammar: str | None = None


class CollectionChoice(Body):
    """A collection to answer from. `mode` "auto" uses all documents if they fit, else passages.

    With `only`, a question that no passage fits is refused without the model.
    """

    id: Annotated[str, Field(min_length=1, max_length=200)]
    mode: Literal["auto", "whole", "passages"] = "auto"
    passages: Annotated[int, Field(ge=1, le=50)] | None = None
    only: bool = False


class ChatRequest(SamplingBody, OutputFields):
    """POST /v1/chat/completions."""

    shapes: ClassVar[Mapping[str, Any]] = {**OutputFields.shapes, "tools": _TOOL, "tool_choice": _CHOICE}

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=100_000)]
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    n_predict: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=512)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking_budget: Budget | None = None
    thinking_budget_tokens: Budget | None = None
    thinking: Thinking | None = None
    reasoning: ChatReasoning | None = None
    include_reasoning: bool | None = None
    chat_template: Annotated[str, Field(max_length=1 << 20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    modalities: list[Literal["text"]] | None = None
    return_progress: bool | None = None
    collection: Annotated[str, Field(min_length=1, max_length=200)] | CollectionChoice | None = None
    receipt: bool | None = None

    def refuse_impossible(self) -> None:
        """Raises: InputFault: a field requests something that is not supported."""
        for name, reason in NOT_POSSIBLE.items():
            if (self.model_extra or {}).get(name) is not None:
                raise InputFault(f"{name} is not supported: {reason}.", name)
        if self.top_logprobs is not None and not self.logprobs:
            raise InputFault("top_logprobs needs logprobs: true.", "top_logprobs")

    def custom_names(self) -> frozenset[str]:
        """Names of the tools with free-text input."""
        tools = (tool.get("custom") for tool in self.tools or () if tool.get("type") == "custom")
        return frozenset(str(tool.get("name")) for tool in tools if isinstance(tool, dict))

    def options(self) -> dict[str, Any]:
        """Reasoning options for `ChatQuery`; if several fields set the same option, the first one counts."""
        thinking, reasoning = self.thinking or Thinking(type="adaptive"), self.reasoning or Reasoning()
        switch = {"enabled": True, "disabled": False}.get(thinking.type)
        own = (self.chat_template_kwargs or {}).get("thinking_budget")
        switches = (self.enable_thinking, switch, reasoning.enabled)
        return {
            "thinking": next((value for value in switches if value is not None), None),
            "reasoning_effort": self.reasoning_effort or reasoning.effort,
            "reasoning_budget": limit_of(
                self.thinking_budget,
                self.thinking_budget_tokens,
                thinking.budget_tokens,
                reasoning.max_tokens,
                own if isinstance(own, int) else None,
            ),
        }

    @property
    def shows_reasoning(self) -> bool:
        """Whether the response contains the model's reasoning."""
        return self.include_reasoning is not False and not (self.reasoning and self.reasoning.exclude)

    @property
    def answer_limit(self) -> int | None:
        """Maximum tokens of the response; None: as many as fit."""
        return limit_of(self.max_completion_tokens, self.max_tokens, self.n_predict)


class CompletionRequest(SamplingBody, OutputFields):
    """POST /v1/completions."""

    model: str
    prompt: (
        str
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=64)]
        | Annotated[list[list[TokenId]], Field(min_length=1, max_length=64)]
    )
    suffix: str | None = None
    receipt: bool | None = None
    max_tokens: TokenLimit | None = None
    n_predict: TokenLimit | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None

    @property
    def answer_limit(self) -> int | None:
        """Maximum tokens of each response; None: as many as fit."""
        if self.max_tokens is None and self.n_predict is None:
            return DEFAULT_MAX_TOKENS
        return limit_of(self.max_tokens, self.n_predict)

    @property
    def scores_prompt(self) -> bool:
        """Whether the log probabilities of the prompt's tokens are returned, which evaluations sum up."""
        return bool(self.echo) and self.logprobs is not None and not self.suffix

    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[t for t in self.prompt if isinstance(t, int)]]
        return [p for p in self.prompt if isinstance(p, str | list)]
