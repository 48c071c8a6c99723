"""Converts chat events to output items and server-sent events, in the order that clients check."""

import time
from typing import TYPE_CHECKING, Any

import msgspec

from devices.errors import TesseraError
from engine.chat.chat_pipeline import AnswerFinished, AnswerLogprobs, ChatEvent
from engine.chat.tools.parser import PARAGRAPH
from engine.chat.types import CallArguments, CallEnded, CallStarted, Message, ReasoningDelta, TextDelta, ToolCall
from engine.core.errors import ContextOverflow, InputFault
from engine.core.ownership import new_id
from engine.core.types import Usage
from engine.server.custom_tools import custom_input
from engine.server.openai.stream import chat_logprob
from engine.server.responses.tools import Toolbox

if TYPE_CHECKING:
    from engine.server.responses.file_search import FoundPassages

_encode = msgspec.json.encode


def usage_body(usage: Usage) -> dict[str, Any]:
    """Usage in this protocol's names."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class ItemStream:
    """One response. `feed` returns the encoded events and collects the items for the non-streamed format."""

    def __init__(self, response: dict[str, Any], box: Toolbox) -> None:
        self.response = response
        self.output: list[dict[str, Any]] = []
        self._box = box
        self._sequence = 0
        self._kind = ""
        self._item: dict[str, Any] = {}
        self._arguments = self._call_id = self._call_name = ""
        self._calls: list[ToolCall] = []
        self._passages: FoundPassages | None = None
        self._logprobs: list[dict[str, Any]] = []  # log probabilities of unsent text

    def begin(self) -> bytes:
        """The first two events."""
        return self._event("response.created", response=self.snapshot()) + self.keep_alive_event()

    def keep_alive_event(self) -> bytes:
        """Keep-alive event; clients count events, not comments, as activity."""
        return self._event("response.in_progress", response=self.snapshot())

    def snapshot(self) -> dict[str, Any]:
        """The current response object."""
        return {**self.response, "output": list(self.output)}

    def search_begins(self) -> bytes:
        item: dict[str, Any] = {"id": new_id("fs", "_"), "type": "file_search_call", "status": "in_progress"}
        out = self._open({**item, "queries": [], "results": None}, item["type"])
        ids = self._ids()
        for state in ("in_progress", "searching"):
            out += self._event(f"response.file_search_call.{state}", **ids)
        return out

    def search_ended(self, passages: "FoundPassages", *, with_results: bool) -> bytes:
        """Events for the end of the search; later citations refer to `passages`.

        `with_results`: the item has the results.
        """
        self._passages, self._kind = passages, ""
        self._item |= {"status": "completed", "queries": list(passages.questions)}
        if with_results:
            self._item["results"] = passages.payload()
        out = self._event("response.file_search_call.completed", **self._ids())
        return out + self._done()

    def feed(self, item: ChatEvent) -> bytes:
        if isinstance(item, AnswerLogprobs):
            self._logprobs += map(chat_logprob, item.entries)
        if isinstance(item, TextDelta):
            return self._grow("message", "output_text", item.text)
        if isinstance(item, ReasoningDelta):
            return self._grow("reasoning", "reasoning_text", item.text)
        if isinstance(item, CallStarted):
            return self._close() + self._open_call(item)
        if isinstance(item, CallArguments):
            return self._more_arguments(item.delta)
        if isinstance(item, CallEnded | AnswerFinished):
            end = item if isinstance(item, AnswerFinished) else None
            cut = end is not None and end.finish_reason == "length"
            return self._close("incomplete" if cut else "completed") + (self._finish(end) if end else b"")
        return b""

    def fail(self, error: Exception) -> bytes:
        self.response |= {"status": "failed", "error": failure(error)}
        return self._event("response.failed", response=self.snapshot())

    def message(self) -> Message:
        """The response as a message of the conversation."""
        texts = [p["text"] for i in self.output if i["type"] == "message" for p in i["content"]]
        thoughts = [p["text"] for i in self.output if i["type"] == "reasoning" for p in i["content"]]
        return Message(
            role="assistant",
            content=PARAGRAPH.join(texts),
            reasoning=PARAGRAPH.join(thoughts) or None,
            tool_calls=tuple(self._calls),
        )

    # ------------------------------------------------------------------ items

    def _event(self, kind: str, **body: Any) -> bytes:
        payload = {"type": kind, "sequence_number": self._sequence, **body}
        self._sequence += 1
        return b"event: " + kind.encode() + b"\ndata: " + _encode(payload) + b"\n\n"

    def _ids(self) -> dict[str, Any]:
        return {"item_id": self._item["id"], "output_index": len(self.output)}

    def _open(self, item: dict[str, Any], kind: str) -> bytes:
        self._kind, self._item = kind, item
        return self._event("response.output_item.added", output_index=len(self.output), item=item)

    def _grow(self, kind: str, part: str, text: str) -> bytes:
        out = b""
        if self._kind != kind:
            out = self._close()
            if self.output:  # the new paragraph is a separate item
                text = text.lstrip()
            out += self._open_text(kind, part)
        self._item["content"][0]["text"] += text
        extra: dict[str, Any] = {}
        if kind == "message":
            extra["logprobs"], self._logprobs = self._logprobs, []
            self._item["content"][0]["logprobs"] += extra["logprobs"]
        return out + self._event(f"response.{part}.delta", **self._ids(), content_index=0, delta=text, **extra)

    def _open_text(self, kind: str, part: str) -> bytes:
        item: dict[str, Any]
        if kind == "message":
            item = {"id": new_id("msg", "_"), "type": "message", "role": "assistant", "status": "in_progress"}
        else:
            item = {"id": new_id("rs", "_"), "type": "reasoning", "summary": [], "status": "in_progress"}
        empty: dict[str, Any] = {"type": part, "text": ""}
        if kind == "message":
            empty |= {"annotations": [], "logprobs": []}
        out = self._open({**item, "content": []}, kind)
        self._item["content"].append({**empty, "logprobs": []} if kind == "message" else dict(empty))
        return out + self._event("response.content_part.added", **self._ids(), content_index=0, part=empty)

    def _open_call(self, call: CallStarted) -> bytes:
        item_id, call_id = new_id("fc", "_"), new_id("call", "_")
        self._arguments, self._call_id, self._call_name = "", call_id, call.name
        item = self._box.item(item_id, call_id, call.name)
        return self._open(item, str(item["type"]))

    def _more_arguments(self, delta: str) -> bytes:
        self._arguments += delta
        if self._kind != "function_call":
            return b""  # the text is known only when its JSON is complete
        return self._event("response.function_call_arguments.delta", **self._ids(), delta=delta)

    def _close(self, status: str = "completed") -> bytes:
        if not self._kind:
            return b""
        kind, self._kind = self._kind, ""
        whole = status == "completed"
        out = self._close_call(kind, whole=whole) if kind.endswith("_call") else self._close_text(kind)
        self._item["status"] = status
        return out + self._done()

    def _done(self) -> bytes:
        out = self._event("response.output_item.done", output_index=len(self.output), item=self._item)
        self.output.append(self._item)
        return out

    def _close_text(self, kind: str) -> bytes:
        part = self._item["content"][0]
        if kind == "message":  # log probabilities of tokens after the last text
            part["logprobs"] += self._logprobs
            self._logprobs = []
        extra = {"logprobs": part["logprobs"]} if kind == "message" else {}
        ids = {**self._ids(), "content_index": 0}
        out = self._cite(part, ids) if kind == "message" and self._passages else b""
        out += self._event(f"response.{part['type']}.done", **ids, text=part["text"], **extra)
        return out + self._event("response.content_part.done", **ids, part=part)

    def _cite(self, part: dict[str, Any], ids: dict[str, Any]) -> bytes:
        assert self._passages is not None
        part["annotations"] = self._passages.citations(part["text"])
        return b"".join(
            self._event("response.output_text.annotation.added", **ids, annotation_index=number, annotation=mark)
            for number, mark in enumerate(part["annotations"])
        )

    def _close_call(self, kind: str, *, whole: bool) -> bytes:
        """The last events of a call. Clients run it at the event that ends its arguments; a cut one has none."""
        self._calls.append(ToolCall(id=self._call_id, name=self._call_name, arguments=self._arguments))
        if kind == "custom_tool_call":
            text = self._item["input"] = custom_input(self._arguments)
            out = self._event("response.custom_tool_call_input.delta", **self._ids(), delta=text)
            ended = self._event("response.custom_tool_call_input.done", **self._ids(), input=text) if whole else b""
            return out + ended
        self._item["arguments"] = self._arguments
        if not whole:
            return b""
        done = {"arguments": self._arguments, "name": self._item["name"]}
        return self._event("response.function_call_arguments.done", **self._ids(), **done)

    def _finish(self, end: AnswerFinished) -> bytes:
        cut = end.finish_reason == "length"
        self.response |= {"status": "incomplete" if cut else "completed", "usage": usage_body(end.usage)}
        self.response["completed_at"] = int(time.time())
        if cut:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        if end.notes:
            self.response["tessera"] = {**self.response.get("tessera", {}), "notes": list(end.notes)}
        if end.malformed:
            self.response["malformed_tool_calls"] = list(end.malformed)
        kind = "response.incomplete" if cut else "response.completed"
        return self._event(kind, response=self.snapshot())


def failure(error: Exception) -> dict[str, str]:
    """The `error` of a failed response."""
    is_ours = isinstance(error, TesseraError)
    message = str(error) if is_ours else "An internal error; the server's log has the details."
    return {"code": _code(error), "message": message}


def _code(error: Exception) -> str:
    if isinstance(error, ContextOverflow):
        return "context_length_exceeded"
    if isinstance(error, InputFault):
        return "invalid_prompt" if error.code == "invalid_request" else error.code
    return "server_error"
