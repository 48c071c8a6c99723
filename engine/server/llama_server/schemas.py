"""Request bodies of llama-server's routes."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from engine.core.errors import InputFault
from engine.server.body import Body
from engine.server.models import DEFAULT_NAME
from engine.server.openai.schemas import ChatRequest, OutputFields, SamplingBody, TokenLimit

PromptPart = str | Annotated[int, Field(ge=0, lt=1 << 31)]
# `false` means "never" in llama-server.
Bias = Annotated[float, Field(ge=-100, le=100)] | Literal[False]
NEVER = -100.0
MAX_DIGITS = 10


class TextPrompt(Body):
    """A prompt as an object. Images are supported only in chat requests."""

    prompt_string: str
    multimodal_data: list[str] | None = None


Prompts = Annotated[list[PromptPart | list[PromptPart] | TextPrompt], Field(min_length=1, max_length=1 << 20)]
Biases = Annotated[list[tuple[PromptPart, Bias]], Field(max_length=1 << 16)]


class NativeRequest(SamplingBody, OutputFields):
    """POST /completion. Without `model`: the most recently used one. A prompt may mix text and tokens."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"stream_options"})

    model: str | None = None
    prompt: str | TextPrompt | Prompts
    logit_bias: dict[str, Bias] | Biases | None = None  # type: ignore[assignment]
    n_predict: TokenLimit | None = None
    max_tokens: TokenLimit | None = None
    n_probs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_tokens: bool | None = None
    cache_prompt: bool | None = None
    t_max_predict_ms: Annotated[float, Field(ge=0)] | None = None
    response_fields: Annotated[list[str], Field(max_length=64)] | None = None

    def prompts(self) -> list[str | list[PromptPart]]:
        """The prompts. A list that contains a number is one prompt; other lists contain several."""
        if not isinstance(self.prompt, list):
            return [_text(self.prompt)]
        if any(isinstance(part, int) for part in self.prompt):
            if any(isinstance(part, list | TextPrompt) for part in self.prompt):
                raise InputFault("prompt: tokens and whole prompts cannot be mixed in one list.", "prompt")
            return [[part for part in self.prompt if isinstance(part, int | str)]]
        return [p if isinstance(p, list) else _text(p) for p in self.prompt if not isinstance(p, int)]

    def bias(self) -> dict[int, float]:
        """Empty: texts need a model's vocabulary to become tokens, see `_sampling` in routes.py."""
        return {}

    def biases(self) -> list[tuple[PromptPart, float]]:
        """Bias per token id, or per text, which applies to all its tokens."""
        biases = self.logit_bias or {}
        pairs = biases.items() if isinstance(biases, dict) else biases
        return [(_token(key), NEVER if value is False else value) for key, value in pairs]


def _text(prompt: str | TextPrompt) -> str:
    if isinstance(prompt, str):
        return prompt
    if prompt.multimodal_data:
        where = "prompt.multimodal_data"
        raise InputFault(f"{where}: images are accepted in conversations only, at /v1/chat/completions.", where)
    return prompt.prompt_string


def _token(key: PromptPart) -> PromptPart:
    """Convert a numeric key to a token id, because JSON object keys are always text."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < MAX_DIGITS else key


class TemplateRequest(ChatRequest):
    """POST /apply-template and the token count of a conversation."""

    model: str = DEFAULT_NAME
    add_generation_prompt: bool | None = None
