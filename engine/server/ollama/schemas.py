"""Request bodies of Ollama's protocol."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, field_validator

from engine.core.errors import InputFault
from engine.server.body import ANY, Body, OptionalText
from engine.server.sampling_fields import SharedSampling
from quantize.files.sampling_keys import SAMPLING


class Options(SharedSampling):
    """Model parameters of one request. Other parameters are reported as ignored."""

    num_ctx: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    num_predict: Annotated[int, Field(ge=-2, lt=1 << 31)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=1 << 20)] | None = None

    @field_validator("num_ctx", "num_predict", "repeat_last_n", "top_k", "seed", mode="before")
    @classmethod
    def _whole(cls, value: object) -> object:
        """A whole number that a client wrote with a point, such as 8192.0, as an integer: Ollama takes it."""
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def sampling(self) -> dict[str, Any]:
        """The request's sampling values on top of Ollama's defaults."""
        values: dict[str, Any] = {name: row.ollama for name, row in SAMPLING.items() if row.ollama is not None}
        shared = SharedSampling.model_fields.keys() - {"seed", "stop"}
        values |= {name: v for name in shared if (v := getattr(self, name)) is not None}
        if self.repeat_last_n is not None and self.repeat_last_n >= 0:
            values["repeat_last_n"] = self.repeat_last_n
        elif self.repeat_last_n is not None:
            values["repeat_last_n"] = 1 << 20
        if self.seed is not None:
            values["seed"] = self.seed % (1 << 32)
        return values

    @property
    def max_tokens(self) -> int | None:
        """Maximum tokens of the response; -1 and -2 mean up to the end of the context."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None


class ModelRequest(Body):
    """Fields of every request that needs a loaded model."""

    model: Annotated[str, Field(min_length=1, max_length=500)]
    options: Options | None = None
    keep_alive: str | float | int | None = None

    @property
    def settings(self) -> Options:
        return self.options or Options()


class Running(ModelRequest):
    """Fields of every generation request."""

    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        """Number of requested alternatives per token; None: no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


_CALL: Final = {"id": ANY, "type": ANY, "function": {"name": ANY, "arguments": ANY, "index": ANY}}
_TOOL: Final = {"type": ANY, "function": {"name": ANY, "description": ANY, "parameters": ANY}}


def _lower(role: object) -> object:
    """Ollama reads roles in any case."""
    return role.lower() if isinstance(role, str) else role


class ChatMessage(Body):
    """One message; images are base64 without a header."""

    shapes: ClassVar = {"tool_calls": _CALL}

    role: Annotated[Literal["system", "developer", "user", "assistant", "tool"], BeforeValidator(_lower)]
    content: str | None = None
    thinking: str | None = None
    images: Annotated[list[str], Field(max_length=64)] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ChatBody(Running):
    """POST /api/chat."""

    shapes: ClassVar = {"tools": _TOOL}

    messages: Annotated[list[ChatMessage], Field(max_length=100_000)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=512)] | None = None


class GenerateBody(Running):
    """POST /api/generate."""

    prompt: OptionalText = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: Annotated[list[str], Field(max_length=64)] | None = None
    template: str | None = None
    context: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=1 << 20)] | None = None

    def ignored(self) -> list[str]:
        """Also lists fields that a raw prompt or a fill-in-the-middle prompt cannot use."""
        names = super().ignored()
        if self.raw or self.suffix:
            names += [name for name in ("images", "think", "context") if getattr(self, name)]
        return names


class EmbedBody(ModelRequest):
    """POST /api/embed."""

    input: str | Annotated[list[str], Field(max_length=2048)]
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=1, le=1 << 20)] | None = None

    def ignored(self) -> list[str]:
        """Also lists all options except the context length, which is the only one that has an effect."""
        return [*super().ignored(), *_generating(self.options)]


class OldEmbedBody(ModelRequest):
    """POST /api/embeddings, the older format."""

    prompt: str

    def ignored(self) -> list[str]:
        """Also lists all options except the context length, which is the only one that has an effect."""
        return [*super().ignored(), *_generating(self.options)]


def _generating(options: Options | None) -> list[str]:
    """Options that affect only generated text."""
    names = options.model_fields_set & set(Options.model_fields) if options is not None else set()
    return [f"options.{name}" for name in sorted(names - {"num_ctx"})]


class Named(Body):
    """A request for one model; older clients send `name`."""

    model: str | None = None
    name: str | None = None

    @property
    def wanted(self) -> str:
        """The model's name. Raises: InputFault: it is missing."""
        name = self.model or self.name
        if not name:
            raise InputFault("model is required.", "model")
        return name


class ShowBody(Named):
    """POST /api/show. `verbose` includes the long lists of the file's header."""

    verbose: bool | None = None


class PullBody(Named):
    """POST /api/pull."""

    stream: bool | None = None


class CopyBody(Body):
    """POST /api/copy: creates an alias."""

    source: Annotated[str, Field(min_length=1, max_length=500)]
    destination: Annotated[str, Field(min_length=1, max_length=200)]


class CreateBody(Named):
    """POST /api/create: another name for a model, with its own system prompt and options."""

    from_: Annotated[str | None, Field(alias="from")] = None
    quantize: str | None = None
    system: Annotated[str, Field(max_length=1_000_000)] | None = None
    parameters: Options | None = None
    stream: bool | None = None
