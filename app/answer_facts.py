"""Metadata stored with a message; clients, the database and the window use the same type."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from devices.msgspec_lock import learned
from engine.api.chat import Runaway, Timings, Usage
from engine.api.collections import Citations
from engine.api.receipts import Receipt
from engine.message_catalog.reasons import Reason


class ToolCall(msgspec.Struct):
    """A tool call from the model. `arguments` is JSON text and is complete only at the end of the stream."""

    name: str = ""
    arguments: str = ""
    id: str = ""


class WebSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """A web page that a tool found; `read`: its text was read, not only its excerpt."""

    url: str
    title: str = ""
    excerpt: str = ""
    read: bool = False


class AnswerFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Metadata of a message, stored as one JSON object with these field names."""

    # Fields of a response. `first_s`: seconds from the request to the first token, including the time to load the
    # model.
    usage: Usage | None = None
    timings: Timings | None = None
    first_s: float = 0.0
    finish_reason: str = ""
    runaway: Runaway | None = None
    ran_on: str = ""
    ran_on_detail: Reason | None = None
    grounds: Citations | None = None
    receipt: Receipt | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    edited: bool = False
    # For responses and tool results: the web pages that they are based on.
    sources: tuple[WebSource, ...] = ()
    # For a response: the remembered facts that its model received.
    memories: tuple[str, ...] = ()
    # Fields of a failed response.
    error: str = ""
    error_code: str = ""
    pictures_sent: bool = False
    # For a user message: the server rejected its images and answered without them.
    pictures_left_out: bool = False
    # For an imported message: the parts that could not be imported.
    left_out: tuple[str, ...] = ()
    # Fields of a tool result.
    tool: str = ""
    call_id: str = ""
    ok: bool = True
    seconds: float | None = None

    def updated(self, new: "AnswerFacts") -> "AnswerFacts":
        """A copy in which the values that `new` sets replace the old ones."""
        if new is NO_FACTS:  # nearly every chunk of a stream
            return self
        changes = {
            name: value
            for name in new.__struct_fields__
            if (value := getattr(new, name)) != getattr(NO_FACTS, name)
        }
        return msgspec.structs.replace(self, **changes)


NO_FACTS: Final = AnswerFacts()


_MAX_SOURCES: Final = 8


def sources_of(sources: Iterable[WebSource], answer: str) -> tuple[WebSource, ...]:
    """The sources of an answer: pages read and results that the answer names; if there are neither, all sources."""
    by_url: dict[str, WebSource] = {}
    for each in sources:
        before = by_url.get(each.url)
        if before is None or each.read:
            title = before.title if before is not None else each.title
            by_url[each.url] = WebSource(each.url, title or each.title, read=each.read)
    used = [each for each in by_url.values() if each.read or each.url in answer]
    return tuple((used or list(by_url.values()))[:_MAX_SOURCES])


def facts_of(stored: Any) -> AnswerFacts:
    """Build AnswerFacts from plain values; skip invalid fields and use the others."""
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
    """Decode the facts of a database row."""
    try:
        return msgspec.json.decode(stored, type=learned(AnswerFacts))
    except msgspec.ValidationError:
        return facts_of(msgspec.json.decode(stored))
    except msgspec.DecodeError:
        return NO_FACTS


def encoded(facts: AnswerFacts) -> str:
    """Encode the facts for a database row."""
    return msgspec.json.encode(facts).decode()
