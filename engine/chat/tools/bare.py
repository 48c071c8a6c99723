"""A call that stands in an answer without any marker: plain JSON, perhaps inside a code fence."""

import re
from typing import Final

from engine.chat.tools.dialect import ARGUMENT_KEYS, NAME_KEYS, JsonCalls
from engine.chat.tools.lenient_json import LenientJson
from engine.chat.tools.payloads import JsonPayload
from engine.chat.tools.sink import CallSink

_BEGIN: Final = re.compile(r"\s*(?:```(?:json|tool_call|tool_code)?\s*)?\[?\s*\{")
_FENCES: Final = ("```json", "```tool_call", "```tool_code")
_CALL_KEYS: Final = NAME_KEYS | ARGUMENT_KEYS | {"type", "function", "id"}


class BareJson:
    """Holds text back until it is certain whether it is a call of one of the request's tools."""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._probe = LenientJson()
        self._name = ""
        self._payload: JsonPayload | None = None
        self._opened = False
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
        rest = head[len(fence) :] if fence and head.startswith(fence) else ""
        return None if not rest.strip(" \t\r\n[") else False

    @property
    def is_call(self) -> bool:
        """It is certain that this is a call."""
        return self._payload is not None

    def feed(self, text: str) -> str | None:
        """Consume text. A text that follows the call, or None: more is needed or `is_text` was found."""
        if self._payload is not None:
            return self._payload.feed(text)
        self.held += text
        if not self._opened:
            begin = _BEGIN.match(self.held)
            if begin is None:
                return None
            self._opened = True
            text = self.held[begin.end() - 1 :]
        rest = self._probe.feed(text)
        self._look()
        if self._payload is None and self._probe.done and not self.is_text:
            self.is_text = True
        if self._payload is None:
            return None
        del rest
        begin = _BEGIN.match(self.held)
        assert begin is not None
        return self._payload.feed(self.held[begin.end() - 1 :])

    def finish(self, *, cut: bool) -> None:
        """The answer ends here."""
        if self._payload is None:
            self.is_text = True
        elif not cut:
            self._payload.finish()

    def _look(self) -> None:
        for member, text in self._probe.take():
            if member is None:
                if self._name and self._payload is None and not self.is_text:
                    known = self._sink.known(self._name.strip('"'))
                    self.is_text = not known
                    if known:
                        self._payload = JsonPayload(JsonCalls(), self._sink)
                continue
            if member not in _CALL_KEYS:
                self.is_text = self._payload is None
            elif member in NAME_KEYS or (member == "function" and text.startswith('"')):
                self._name += text
