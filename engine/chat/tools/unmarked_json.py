"""A call that is in an answer without any marker: plain JSON, perhaps inside a code fence."""

import re
from typing import Final

from engine.chat.tools.call_events import CallSink
from engine.chat.tools.call_parsers import JsonPayload
from engine.chat.tools.dialect import ARGUMENT_KEYS, NAME_KEYS, JsonCalls
from engine.chat.tools.lenient_json import LenientJson

_BEGIN: Final = re.compile(r"\s*+(?:```(?:json|tool_call|tool_code)?+\s*+)?+\[?+\s*+\{")
_FENCES: Final = ("```json", "```tool_call", "```tool_code")
_CALL_KEYS: Final = NAME_KEYS | ARGUMENT_KEYS | {"type", "function", "id"}


class BareJson:
    """Holds text back until it is certain whether it is a call of one of the request's tools."""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._probe = LenientJson()
        self._name = ""
        self._payload: JsonPayload | None = None
        self._begin = -1  # where the brace is in what is held
        self.held = ""
        self.is_text = False

    @staticmethod
    def begins(text: str) -> bool | None:
        """Whether an answer that begins so may be a bare call; None: not yet known."""
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
        """It is certain that this is a call."""
        return self._payload is not None

    def feed(self, text: str) -> str | None:
        """Consume text. A text that follows the call, or None: more is needed or `is_text` was found."""
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
        payload = self._look()
        if payload is None:
            self.is_text |= self._probe.done
            return None
        self._payload = payload
        return payload.feed(self.held[self._begin :])

    def finish(self, *, cut: bool) -> None:
        """The answer ends here."""
        if self._payload is None:
            self.is_text = True
        elif not cut:
            self._payload.finish()

    def _look(self) -> JsonPayload | None:
        """The call's parser once its name turned out to be a tool's; `is_text` is set when it cannot be."""
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
