"""What an answer is made of while it streams: reasoning, text, tool calls. Protocols translate these."""

import msgspec


class ReasoningDelta(msgspec.Struct, frozen=True):
    """More of the model's reasoning."""

    text: str


class TextDelta(msgspec.Struct, frozen=True):
    """More of the visible answer."""

    text: str


class CallStarted(msgspec.Struct, frozen=True):
    """A tool call begins. `index` counts from 0 within one answer."""

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
    """The model tried to call a tool, and neither name nor arguments could be made of `text`."""

    text: str


AnswerEvent = ReasoningDelta | TextDelta | CallStarted | CallArguments | CallEnded | CallMalformed
