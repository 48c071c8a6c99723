"""What is known of a message in addition to its text: one shape for clients, the store and the window."""

from typing import Any, Final

import msgspec

from devices.msgspec_lock import learned
from engine.api.chat import Runaway, Timings, Usage
from engine.api.collections import Grounds
from engine.api.receipts import Receipt
from engine.message_catalog.reasons import Reason


class ToolCall(msgspec.Struct):
    """A call the model wants made; `arguments` is JSON text, complete at the end."""

    name: str = ""
    arguments: str = ""
    id: str = ""


class AnswerFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored with a message as one JSON object, whose names are these."""

    # Of an answer. `first_s`: from the question to the first word, the start of the model included.
    usage: Usage | None = None
    timings: Timings | None = None
    first_s: float = 0.0
    finish_reason: str = ""
    runaway: Runaway | None = None
    ran_on: str = ""
    ran_on_detail: Reason | None = None
    grounds: Grounds | None = None
    receipt: Receipt | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    edited: bool = False
    # Of an answer that failed.
    error: str = ""
    error_code: str = ""
    pictures_sent: bool = False
    # Of a question: the server refused its pictures, and answers without them.
    pictures_left_out: bool = False
    # Of an imported message: what could not be taken.
    left_out: tuple[str, ...] = ()
    # Of the result of a tool.
    tool: str = ""
    call_id: str = ""
    ok: bool = True
    seconds: float | None = None

    def updated(self, new: "AnswerFacts") -> "AnswerFacts":
        """These facts, with those that `new` has in their place."""
        if new is NO_FACTS:  # nearly every piece of a stream
            return self
        changes = {
            name: value
            for name in new.__struct_fields__
            if (value := getattr(new, name)) != getattr(NO_FACTS, name)
        }
        return msgspec.structs.replace(self, **changes)


NO_FACTS: Final = AnswerFacts()


def facts_of(stored: Any) -> AnswerFacts:
    """Facts from plain values; where one is damaged, the others stay."""
    try:
        return msgspec.convert(stored, learned(AnswerFacts))
    except msgspec.ValidationError:
        facts = NO_FACTS
        for name, value in stored.items() if isinstance(stored, dict) else ():
            try:
                facts = facts.updated(msgspec.convert({name: value}, learned(AnswerFacts)))
            except msgspec.ValidationError:
                continue
        return facts


def decoded(stored: str) -> AnswerFacts:
    """The facts of a row of the store."""
    try:
        return msgspec.json.decode(stored, type=learned(AnswerFacts))
    except msgspec.ValidationError:
        return facts_of(msgspec.json.decode(stored))
    except msgspec.DecodeError:
        return NO_FACTS


def encoded(facts: AnswerFacts) -> str:
    """The facts as a row of the store has them."""
    return msgspec.json.encode(facts).decode()
