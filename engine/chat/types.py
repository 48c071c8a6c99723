"""The engine's form of a conversation; the messages of every protocol are converted to it."""

from typing import Any, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]
ToolMode = Literal["none", "auto", "required"]


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Text inside a message of several parts. `fields`: its further members, for templates that read them.

    `replaces`: the client's parameter of a part that cannot be read here, in whose place the text stands.
    """

    text: str
    fields: dict[str, str] = {}
    replaces: str = ""


class ImagePart(msgspec.Struct, frozen=True, kw_only=True, tag="image"):
    """One encoded image inside a message; decoded only in the runner."""

    data: bytes
    media_type: str = "image/png"


Part = TextPart | ImagePart


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call made by the model. `arguments` is JSON text as received (it may be malformed in a history)."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn. `tool_call_id` and `name` belong to a tool's result, `tool_calls` to the assistant."""

    role: Role
    content: str | tuple[Part, ...] = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    def text(self) -> str:
        """The text of the message without its images."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call. `parameters` is a JSON schema of an object; `strict` enforces it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False


class NamedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool choice that names the one function to call."""

    name: str


ToolChoice = ToolMode | NamedTool


class ChatTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A model's own Jinja template and the text of its special tokens. `source` None: the built-in ChatML."""

    source: str | None = None
    bos: str = ""
    eos: str = ""


class TemplateTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Features that a template supports, detected by test renders. `arguments_as_text`: calls take JSON text."""

    system_role: bool = True
    tools: bool = False
    tool_calls: bool = False
    tool_results: bool = False
    parallel_calls: bool = False
    arguments_as_text: bool = False
    typed_content: bool = False
    reasoning: bool = False


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt ready to be tokenized.

    `prefill` is the end of `prompt` that the template added after the last message: the head of the response,
    possibly with reasoning already open. `add_special` False: the prompt already begins with the model's
    first token. `images` are in the order of the media markers in the prompt. `repairs` lists every change to
    the conversation that the template required.
    """

    prompt: str
    prefill: str
    add_special: bool
    images: tuple[ImagePart, ...] = ()
    repairs: tuple[str, ...] = ()
    traits: TemplateTraits = TemplateTraits()


# Parts of a streamed response: reasoning, text, tool calls. Protocols convert these.


class ReasoningDelta(msgspec.Struct, frozen=True):
    """More of the model's reasoning."""

    text: str


class TextDelta(msgspec.Struct, frozen=True):
    """More of the visible response."""

    text: str


class CallStarted(msgspec.Struct, frozen=True):
    """Start of a tool call. `index` counts from 0 within one response."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """More of a call's arguments, as JSON text."""

    index: int
    delta: str


class CallEnded(msgspec.Struct, frozen=True):
    """A call is complete."""

    index: int


class CallMalformed(msgspec.Struct, frozen=True):
    """The model tried to call a tool, but `text` has no readable name or arguments."""

    text: str


AnswerEvent = ReasoningDelta | TextDelta | CallStarted | CallArguments | CallEnded | CallMalformed
