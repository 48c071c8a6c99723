"""Parses streamed responses in any dialect: reasoning, visible text and tool calls.

The text may arrive in chunks of any size; the events are the same for every split, except where deltas are cut.
Text that may still become a marker is buffered; events that were sent are never changed.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import ClassVar, Final

from engine.chat.reasoning import last_opening, open_markers
from engine.chat.tools.call_events import CallSink
from engine.chat.tools.call_parsers import (
    MAX_HEADER_CHARS,
    JsonPayload,
    NamedPayload,
    NotACall,
    Payload,
    PythonPayload,
)
from engine.chat.tools.dialect import (
    ARGUMENT_KEYS,
    FENCES,
    NAME_KEYS,
    Dialect,
    JsonCalls,
    Marks,
    NamedCalls,
    PythonCalls,
    Section,
    TaggedCalls,
    marks_of,
)
from engine.chat.tools.lenient_json import LenientJson
from engine.chat.tools.tagged import TaggedPayload
from engine.chat.types import AnswerEvent, ReasoningDelta, TextDelta, ToolDefinition

# These have no meaning between the calls of a section.
_FILLER: Final = ",;[]"
_IMPLICIT: Final = Section("")
# Separates texts of one kind around a call or another block: protocols with one text per response join them.
PARAGRAPH: Final = "\n\n"


class _Mode(Enum):
    __hash__ = object.__hash__  # Enum's own is a Python function

    TEXT = auto()
    REASONING = auto()
    HELD = auto()
    HEADER = auto()
    SECTION = auto()
    CALL = auto()
    BARE = auto()
    FOREIGN = auto()


class AnswerParser:
    """Parser of one response. Without `tools` it finds no calls; without a reasoning dialect all is text.

    `prefill` is the head of the response that the template wrote: it may have opened reasoning.
    """

    def __init__(self, dialect: Dialect, tools: Sequence[ToolDefinition] = (), prefill: str = "") -> None:
        self._dialect = dialect
        self._events: list[AnswerEvent] = []
        self._sink = CallSink(tools, self._events.append, dialect.id_style)
        self._calls = bool(tools)
        self._mode = _Mode.TEXT
        self._buffer = ""
        self._spaces = ""  # buffered white space: dropped before a call, sent before text
        self._fresh = True  # at the start of the response, or right after a block
        self._trim = False  # after a block: leading white space belongs to the layout
        self._before_block = ""  # white space that was dropped before the block
        # Kinds of text that have begun, and those that a block has interrupted since.
        self._has_text: set[type[TextDelta | ReasoningDelta]] = set()
        self._interrupted: set[type[TextDelta | ReasoningDelta]] = set()
        self._section = _IMPLICIT
        self._section_calls = 0
        self._junk = ""
        # A call inside a reasoning block and all text after it, until it is known whether the block ends.
        self._pending: list[str] = []
        self._held_as: type[TextDelta | ReasoningDelta] = ReasoningDelta
        self._quoted = False  # visible text opened a reasoning block that it has not closed
        self._payload: Payload | None = None
        self._bare: BareJson | None = None
        self._reasoning = dialect.reasoning
        self._marks = marks_of(dialect, calls=self._calls, reasoning=self._reasoning)
        opened = open_markers(prefill, dialect.reasoning)
        if opened is not None:
            self._reasoning = opened
            self._marks = marks_of(dialect, calls=self._calls, reasoning=opened)
            self._mode = _Mode.REASONING
            self._trim = not prefill[last_opening(prefill, opened) :].strip()  # layout, in an empty block
        elif dialect.reasons_in(prefill):
            self._mode = _Mode.REASONING
        else:
            self._buffer = next((seed for seed in dialect.seeds if prefill.endswith(seed)), "")

    @property
    def speaking(self) -> bool:
        """Whether the next text is visible, as far as known."""
        return self._mode in {_Mode.TEXT, _Mode.BARE}

    @property
    def reasoning(self) -> bool:
        """Whether the next text is reasoning, as far as known."""
        return self._mode is _Mode.REASONING

    def feed(self, text: str) -> list[AnswerEvent]:
        """The events that this additional text makes certain."""
        self._buffer += text
        try:
            while self._advance():
                pass
        except NotACall as mistake:
            self._not_a_call(mistake)
            return self.feed("")
        return self._take()

    def finish(self, *, cut: bool = False, ended: bool = True) -> list[AnswerEvent]:
        """End the response. `cut`: the length limit ended it, so an unfinished call stays unfinished.

        `ended`: the model ended it. Only then a call in unclosed reasoning counts as a call: otherwise the end of
        the reasoning might have followed.
        """
        events = self.feed("")
        while self._mode is _Mode.HELD:
            events += self._release() if ended and not cut else self._flush_reasoning()
        if self._mode is _Mode.CALL and self._payload is not None and not cut:
            try:
                self._payload.finish()
            except NotACall as mistake:
                self._not_a_call(mistake)
                events += self.finish(cut=cut)
        elif self._mode is _Mode.BARE and self._bare is not None:
            if not cut or not self._bare.is_call:
                self._bare_end(cut=cut)
        else:
            self._flush(cut=cut)
        self._buffer = self._spaces = ""
        self._mode = _Mode.TEXT
        return events + self._take()

    def _flush(self, *, cut: bool) -> None:
        """Emit the text buffered at the end, outside of calls."""
        if self._mode in {_Mode.FOREIGN, _Mode.SECTION}:
            self._sink.malformed((self._junk + self._buffer).strip(_FILLER + "` \t\r\n"))
        elif self._mode is _Mode.REASONING:
            self._emit(self._buffer, ReasoningDelta)
        elif not (cut and self._sink.count):  # after a call a cut marker (`<tool_`) starts the next one
            self._emit(self._buffer, TextDelta)
        if self._mode is _Mode.TEXT and self._sink.count == 0 and self._spaces and not self._trim:
            self._events.append(TextDelta(self._spaces))

    def _take(self) -> list[AnswerEvent]:
        out = self._events[:]
        self._events.clear()
        return out

    def _advance(self) -> bool:
        return bool(self._STEPS[self._mode](self))

    # ------------------------------------------------------------------ visible text

    def _text(self) -> bool:
        if self._fresh and self._calls and self._dialect.bare_json and self._buffer:
            verdict = BareJson.begins(self._buffer)
            if verdict is None:
                return False
            if verdict:
                self._bare = BareJson(self._sink)
                self._mode = _Mode.BARE
                return True
        mark = self._up_to_mark(self._marks.text, TextDelta)
        if mark is None:
            return False
        self._buffer = self._buffer[len(mark) :]
        self._marker(mark)
        return True

    def _up_to_mark(self, marks: Marks, kind: type[TextDelta | ReasoningDelta]) -> str | None:
        """Emit the text before the next marker; return the marker once it is complete."""
        match = marks.search(self._buffer)
        at = len(self._buffer) if match is None else match.at
        self._emit(self._buffer[:at], kind)
        self._buffer = self._buffer[at:]
        return None if match is None else match.mark

    def _marker(self, mark: str) -> None:
        if self._reasoning and mark == self._reasoning.start:
            if self._fresh or self._dialect.reasoning_anywhere:
                self._mode = _Mode.REASONING
                self._interrupt()
            else:
                self._emit(mark, TextDelta)
                self._quoted = True
        elif self._reasoning and mark == self._reasoning.end and mark not in self._dialect.drops:
            # At the start of a response or after a block, it closes a block that was never opened.
            if self._fresh:
                self._block_over()
            else:
                self._emit(mark, TextDelta)
                self._quoted = False
        elif self._quoted and mark in self._marks.breakers:
            self._begin_hold(mark, TextDelta)
        elif mark in self._marks.starts:
            self._enter(self._marks.starts[mark])
        elif mark in self._marks.loose:
            self._enter(_IMPLICIT)
            self._buffer = mark + self._buffer
        elif mark in self._marks.headers:
            self._mode = _Mode.HEADER
            self._spaces = ""
        else:
            self._block_over()

    def _emit(self, text: str, kind: type[TextDelta | ReasoningDelta]) -> None:
        if self._trim:
            text = text.lstrip()
        stripped = text.rstrip()
        if stripped:
            gap = PARAGRAPH if kind in self._interrupted else self._spaces
            self._events.append(kind(gap + stripped))
            self._spaces = text[len(stripped) :]
            self._trim = False
            self._has_text.add(kind)
            self._interrupted.discard(kind)
            if kind is TextDelta:
                self._fresh = False
        else:
            self._spaces += text

    def _interrupt(self) -> None:
        """A block begins or ends: the next text of a kind that has begun is a new paragraph."""
        self._trim = True
        self._spaces = ""
        self._interrupted |= self._has_text

    def _block_over(self) -> None:
        self._mode = _Mode.TEXT
        self._fresh = True
        self._interrupt()

    # ------------------------------------------------------------------ reasoning

    def _reason(self) -> bool:
        mark = self._up_to_mark(self._marks.reasoning, ReasoningDelta)
        if mark is None:
            return False
        if mark in self._marks.breakers:
            self._buffer = self._buffer[len(mark) :]
            self._begin_hold(mark, ReasoningDelta)
        else:
            self._reasoning_over(mark)
        return True

    def _reasoning_over(self, mark: str) -> None:
        self._block_over()
        closing = self._reasoning is not None and mark == self._reasoning.end
        if closing or (self._dialect.headers and mark in self._dialect.headers.body_ends):
            self._buffer = self._buffer[len(mark) :]

    # A model that considers a call writes it inside its reasoning. A model that forgets to close its reasoning
    # makes a call there. Only the end shows which one it was.

    def _begin_hold(self, mark: str, kind: type[TextDelta | ReasoningDelta]) -> None:
        self._pending = [mark]
        self._held_as = kind
        self._mode = _Mode.HELD

    def _hold(self) -> bool:
        match = self._marks.closing.search(self._buffer)
        at = len(self._buffer) if match is None else match.at
        self._pending.append(self._buffer[:at])
        self._buffer = self._buffer[at:]
        if match is None or match.mark is None:
            return False
        self._emit("".join(self._pending), self._held_as)
        self._pending = []
        if self._held_as is ReasoningDelta:
            self._reasoning_over(match.mark)
        else:
            self._mode = _Mode.TEXT
        return True

    def _release(self) -> list[AnswerEvent]:
        """The reasoning was never closed: parse the buffered text as calls."""
        self._buffer = "".join(self._pending) + self._buffer
        self._pending = []
        self._quoted = False
        if self._held_as is ReasoningDelta:
            self._block_over()
        else:
            self._mode = _Mode.TEXT
        return self.feed("")

    def _flush_reasoning(self) -> list[AnswerEvent]:
        """The response was cut inside its reasoning: the buffered text remains reasoning."""
        self._emit("".join(self._pending) + self._buffer, self._held_as)
        self._pending = []
        self._buffer = ""
        self._mode = _Mode.REASONING if self._held_as is ReasoningDelta else _Mode.TEXT
        return self._take()

    def _header(self) -> bool:
        headers = self._dialect.headers
        assert headers is not None
        before, end, after = self._buffer.partition(headers.end)
        if len(before) > MAX_HEADER_CHARS:
            self._mode = _Mode.TEXT
            return True
        if not end:
            return False
        self._block_over()
        self._buffer = after
        calls = self._calls and not any(word in before for word in headers.text)
        self._marks = marks_of(self._dialect, calls=calls, reasoning=self._reasoning)
        match = headers.call.search(before) if headers.call else None
        if match and headers.call:
            ours = self._sink.is_tool(match["name"]) or (self._calls and "functions." in match[0])
            if not ours:
                self._junk = ""
                self._mode = _Mode.FOREIGN
                return True
            self._enter(Section("", headers.body_ends))
            self._payload = NamedPayload(NamedCalls(start="", header=headers.call), self._sink, headers.body_ends)
            self._mode = _Mode.CALL
            self._buffer = before + after
        elif any(word in before for word in headers.reasoning):
            self._mode = _Mode.REASONING
        return True

    def _foreign(self) -> bool:
        """Skip a message to a tool that the request does not offer, such as a publisher's own interpreter."""
        match = self._marks.closing.search(self._buffer)
        at = len(self._buffer) if match is None else match.at
        self._junk += self._buffer[:at]
        self._buffer = self._buffer[at:]
        if match is None or match.mark is None:
            return False
        self._leave()
        return True

    # ------------------------------------------------------------------ calls

    def _enter(self, section: Section) -> None:
        self._mode = _Mode.SECTION
        self._section = section
        self._section_calls = 0
        self._junk = ""
        self._before_block, self._spaces = self._spaces, ""

    def _leave(self) -> None:
        self._sink.malformed(self._junk)
        self._junk = ""
        self._block_over()

    def _between_calls(self) -> bool:  # noqa: C901, PLR0911 - one exit per construct
        if not self._junk:
            self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return False
        mark = self._marks.section.begins(self._buffer)
        if mark == "":
            return False
        if mark is not None:
            return self._section_mark(mark)
        if self._junk:
            return self._more_junk()
        if self._buffer[0] in _FILLER:
            match = self._marks.section.search(self._buffer)
            fill = len(self._buffer) - len(self._buffer.lstrip(_FILLER + " \t\r\n"))
            self._buffer = self._buffer[fill if match is None else min(fill, match.at) :]
            return True
        forms = self._dialect.forms
        if self._buffer[0] == "{":
            forms = tuple(sorted(forms, key=lambda form: not isinstance(form, JsonCalls)))
        for form in forms:
            payload = self._open(form)
            if payload is not None:
                self._payload = payload
                self._mode = _Mode.CALL
                return True
        if not self._section.ends:
            self._leave()
            return True
        return self._more_junk()

    def _section_mark(self, mark: str) -> bool:
        if mark in self._section.ends or (mark in self._marks.ends and self._section is not _IMPLICIT):
            self._buffer = self._buffer[len(mark) :]
            self._leave()
        elif mark in self._marks.starts:
            self._sink.malformed(self._junk)
            self._buffer = self._buffer[len(mark) :]
            self._enter(self._marks.starts[mark])
        else:
            form = next((f for f in self._dialect.forms if getattr(f, "start", None) == mark), None)
            self._buffer = self._buffer[len(mark) :]
            if form is None:
                if self._section is _IMPLICIT and mark not in FENCES:
                    self._leave()
                return True
            self._sink.malformed(self._junk)
            self._junk = ""
            self._payload = self._payload_of(form)
            self._mode = _Mode.CALL
        return True

    def _more_junk(self) -> bool:
        match = self._marks.section.search(self._buffer[1:])
        end = len(self._buffer) if match is None else match.at + 1
        self._junk += self._buffer[:end]
        self._buffer = self._buffer[end:]
        return True

    def _open(self, form: object) -> Payload | None:
        """The payload parser if this form can start here."""
        if isinstance(form, JsonCalls):
            return JsonPayload(form, self._sink) if self._buffer[0] == "{" else None
        if isinstance(form, PythonCalls):
            return PythonPayload(self._sink) if self._buffer[0].isalpha() or self._buffer[0] == "_" else None
        if isinstance(form, (NamedCalls, TaggedCalls)) and not form.start and self._section_calls == 0:
            return self._payload_of(form)
        return None

    def _payload_of(self, form: object) -> Payload | None:
        if isinstance(form, NamedCalls):
            return NamedPayload(form, self._sink, self._marks.stops)
        if isinstance(form, TaggedCalls):
            return TaggedPayload(form, self._sink, self._marks.stops)
        return None

    def _call(self) -> bool:
        assert self._payload is not None
        text, self._buffer = self._buffer, ""
        remaining = self._payload.feed(text)
        if remaining is None:
            return False
        self._buffer = remaining
        self._payload = None
        self._section_calls += 1
        self._before_block = ""
        self._interrupted |= self._has_text
        self._mode = _Mode.SECTION
        return True

    def _not_a_call(self, mistake: NotACall) -> None:
        """Not a tool call: emit the buffered text with its marker."""
        self._payload = None
        self._mode = _Mode.TEXT
        self._spaces, self._before_block = self._before_block, ""
        self._emit(self._section.start, TextDelta)
        self._buffer = mistake.text + self._buffer

    # ------------------------------------------------------------------ calls without any marker

    def _maybe_bare(self) -> bool:
        assert self._bare is not None
        text, self._buffer = self._buffer, ""
        remaining = self._bare.feed(text)
        if remaining is None and not self._bare.is_text:
            return False
        self._bare_over(remaining or "")
        return True

    def _bare_end(self, *, cut: bool) -> None:
        assert self._bare is not None
        self._bare.finish(cut=cut)
        self._bare_over("")
        self._emit(self._buffer, TextDelta)
        self._buffer = ""

    def _bare_over(self, remaining: str) -> None:
        assert self._bare is not None
        if self._bare.is_text:
            self._mode = _Mode.TEXT
            self._fresh = False
            self._buffer = self._bare.held + remaining
        else:
            self._buffer = remaining
            self._enter(_IMPLICIT)
            self._section_calls = 1
        self._bare = None

    # Functions of this class that are called for each token, by mode.
    _STEPS: ClassVar = {
        _Mode.TEXT: _text,
        _Mode.REASONING: _reason,
        _Mode.HELD: _hold,
        _Mode.HEADER: _header,
        _Mode.SECTION: _between_calls,
        _Mode.CALL: _call,
        _Mode.BARE: _maybe_bare,
        _Mode.FOREIGN: _foreign,
    }


# Markers that the parser of a dialect looks for in each state; created once per dialect.

_BEGIN: Final = re.compile(r"\s*+(?:```(?:json|tool_call|tool_code)?+\s*+)?+\[?+\s*+\{")
_FENCES: Final = ("```json", "```tool_call", "```tool_code")
_CALL_KEYS: Final = NAME_KEYS | ARGUMENT_KEYS | {"type", "function", "id"}


class BareJson:
    """Buffers text until it is certain whether it is a call of one of the request's tools."""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._probe = LenientJson()
        self._name = ""
        self._payload: JsonPayload | None = None
        self._begin = -1  # position of the brace in the buffered text
        self.held = ""
        self.is_text = False

    @staticmethod
    def begins(text: str) -> bool | None:
        """Whether a response with this start may be a bare call; None if not yet known."""
        if _BEGIN.match(text):
            return True
        head = text.lstrip()
        if not head or head == "[" or (head.startswith("[") and not head[1:].strip()):
            return None
        fence = next((f for f in _FENCES if f.startswith(head) or head.startswith(f)), None)
        if fence is None and not (head.startswith("```") and not head[3:].strip("` \n\t[")):
            return False
        remaining = head[len(fence) :] if fence and head.startswith(fence) else ""
        return None if not remaining.strip(" \t\r\n[") else False

    @property
    def is_call(self) -> bool:
        """Whether this is certainly a call."""
        return self._payload is not None

    def feed(self, text: str) -> str | None:
        """Consume text. Returns the text after the call, or None if more is needed or `is_text` was set."""
        if self._payload is not None:
            return self._payload.feed(text)
        self.held += text
        if self._begin < 0:
            match = _BEGIN.match(self.held)
            if match is None:
                return None
            self._begin = match.end() - 1
            text = self.held[self._begin :]
        self._probe.feed(text)
        payload = self._probe_call()
        if payload is None:
            self.is_text |= self._probe.done
            return None
        self._payload = payload
        return payload.feed(self.held[self._begin :])

    def finish(self, *, cut: bool) -> None:
        """Handle the end of the response."""
        if self._payload is None:
            self.is_text = True
        elif not cut:
            self._payload.finish()

    def _probe_call(self) -> JsonPayload | None:
        """The call's parser once its name is known to be a tool's; sets `is_text` if it cannot be a call."""
        for member, text in self._probe.take():
            if member is None and self._name:
                if self._sink.is_tool(self._name.strip('"')):
                    return JsonPayload(JsonCalls(), self._sink)
                self.is_text = True
            if self.is_text or (member is not None and member not in _CALL_KEYS):
                self.is_text = True
                return None
            if member in NAME_KEYS or (member == "function" and text.startswith('"')):
                self._name += text
        return None
