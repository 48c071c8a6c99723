"""Messages between the server and the render child, as msgpack."""

from typing import Any, Final

import msgspec

from devices.msgspec_lock import learned
from engine.chat.types import ChatTemplate, Message, Rendered, ToolDefinition

# Longest prompt that a template may create, in characters; 64 MiB of text are far beyond any context.
MAX_PROMPT_CHARS: Final = 64 << 20


class RenderJob(msgspec.Struct, frozen=True, kw_only=True):
    """Render a conversation. `continue_final` leaves the last assistant message open, to be continued."""

    template: ChatTemplate
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    add_generation_prompt: bool = True
    continue_final: bool = False
    variables: dict[str, Any] = {}


class RenderRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The template raised or failed. `by_template`: it raised `reason` itself. Line 0: unknown."""

    reason: str
    by_template: bool
    line: int = 0


class RenderAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="rendered"):
    """The rendered prompt."""

    rendered: Rendered


Answer = RenderAnswer | RenderRefused

encode = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(learned(RenderJob)).decode
decode_answer = msgspec.msgpack.Decoder(learned(Answer)).decode


# Messages between the server and the child that tests grammars, as msgpack.


class GrammarCheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint to test. If not `strict`, parts of a schema that cannot be enforced may be dropped."""

    kind: str
    source: str
    strict: bool = True


class GrammarCheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """`problem` is empty if the constraint can be enforced; then `kind` and `source` go to the runner.

    `dropped` names the parts of a schema that are not enforced.
    """

    kind: str
    source: str
    problem: str = ""
    dropped: tuple[str, ...] = ()
