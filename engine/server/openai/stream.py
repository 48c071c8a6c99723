"""Builds OpenAI responses: complete objects as dicts, stream chunks as bytes of a template and one string."""

import hashlib
import itertools
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from engine.chat.chat_pipeline import AnswerFinished, AnswerLogprobs, ChatEvent, end_notes
from engine.chat.types import CallArguments, CallEnded, CallStarted, ReasoningDelta, TextDelta
from engine.core.request_timing import current_clock
from engine.core.sampling import Chosen
from engine.core.types import Done, PromptProgress, TokenLogprob, Usage
from engine.core.version import __version__
from engine.message_catalog import sentence
from engine.pool.loaded_model import LoadedModel, QueueTicket
from engine.server.custom_tools import chat_call, custom_input

_encode = msgspec.json.encode


def fingerprint(model: LoadedModel) -> str:
    """System fingerprint. It changes when the program, the model or its load settings change."""
    identity = _encode((__version__, model.id, model.engine, model.settings))
    return f"fp_{hashlib.sha256(identity).hexdigest()[:12]}"


def usage_body(usages: list[Usage]) -> dict[str, Any]:
    """Usage of all choices; the prompt is counted once."""
    prompt = usages[0].prompt_tokens if usages else 0
    completion = sum(u.completion_tokens for u in usages)
    reasoning = sum(u.reasoning_tokens for u in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usages[0].cached_tokens if usages else 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def timings_body(done: Done | AnswerFinished) -> dict[str, float]:
    """Tessera's field `timings`: times in seconds, speed, draft tokens and energy of a request."""
    t = done.timings
    energy = {}
    if t.joules:
        energy = {
            "joules": round(t.joules, 3),
            "tokens_per_joule": round(done.usage.completion_tokens / t.joules, 3),
        }
    gaps = max(done.usage.completion_tokens - 1, 0)
    drafts = {"draft_n": t.draft_tokens, "draft_n_accepted": t.draft_accepted} if t.draft_tokens else {}
    return {
        "queue_s": round(t.queue_s, 6),
        "prefill_s": round(t.prefill_s, 6),
        "ttft_s": round(t.ttft_s, 6),
        "decode_s": round(t.decode_s, 6),
        "tok_s": round(gaps / t.decode_s, 2) if t.decode_s > 0 else 0.0,
        **drafts,
        **energy,
    }


def chat_logprob(entry: TokenLogprob) -> dict[str, Any]:
    """One token's log probabilities in chat format."""
    return {
        **_token_entry(entry.piece, entry.logprob),
        "top_logprobs": [_token_entry(piece, logprob) for _, piece, logprob in entry.top],
    }


def chat_logprobs(entries: list[TokenLogprob]) -> dict[str, Any]:
    """The log probabilities of a choice in chat format."""
    return {"content": [chat_logprob(e) for e in entries], "refusal": None}


def _token_entry(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": finite(logprob)}


def finite(logprob: float) -> float:
    """The log probability, or OpenAI's number for impossible tokens; JSON has no infinity."""
    return max(logprob, -9999.0)


class ChunkWriter:
    """Encodes the stream chunks of one response. Constant parts are encoded once."""

    def __init__(self, kind: str, response_id: str, name: str, model: LoadedModel | None = None) -> None:
        self._head = {"id": response_id, "object": kind, "created": int(time.time()), "model": name}
        self._open = b""
        self.runs(model)

    def runs(self, model: LoadedModel | None) -> None:
        """Set the model once it is known; later chunks have its fingerprint."""
        identity = {"system_fingerprint": fingerprint(model)} if model is not None else {}
        self._open = b"data: " + json.dumps({**self._head, **identity}).encode()[:-1] + b', "choices": ['

    def chunk(
        self,
        index: int,
        inner: bytes,
        finish_reason: str | None = None,
        logprobs: object = None,
        extra: dict[str, Any] | None = None,
    ) -> bytes:
        """A chunk with one choice.

        `inner` is encoded content such as `"delta":{...}`; `extra` is Tessera's report.
        """
        reason = b"null" if finish_reason is None else b'"' + finish_reason.encode() + b'"'
        probabilities = b"null" if logprobs is None else _encode(logprobs)
        return b'%s{"index":%d,%s,"logprobs":%s,"finish_reason":%s}]%s}\n\n' % (
            self._open,
            index,
            inner,
            probabilities,
            reason,
            b',"tessera":' + _encode(extra) if extra else b"",
        )

    def text(self, index: int, text: str) -> bytes:
        """Fast version of `chunk` for a content delta, which is sent for every token."""
        return b'%s{"index":%d,"delta":{"content":%s},"logprobs":null,"finish_reason":null}]}\n\n' % (
            self._open,
            index,
            _encode(text),
        )

    def usage(self, usages: list[Usage], timings: dict[str, float]) -> bytes:
        """The last chunk if the client requested usage: no choices."""
        tail = _encode({"usage": usage_body(usages), "timings": timings})
        return self._open + b"]," + tail[1:] + b"\n\n"

    def prefill_progress(self, progress: PromptProgress) -> bytes:
        """Prompt progress as llama-server reports it: `cache` of the `processed` tokens were cached.

        In addition, `left_s` estimates the seconds until the first token, and `busy` is true if other programs use
        the CPU.
        """
        fields: dict[str, Any] = {
            "total": progress.prompt_tokens,
            "cache": progress.cached_tokens,
            "processed": progress.processed,
        }
        if progress.left_s:
            fields["left_s"] = progress.left_s
        if progress.busy:
            fields["busy"] = True
        return self._open + b"]," + _encode({"prompt_progress": fields})[1:] + b"\n\n"

    def load_progress(self, ticket: QueueTicket) -> bytes:
        """Load progress of the model, 0 to 1, and the number of earlier requests."""
        fields: dict[str, Any] = {"fraction": round(ticket.fraction, 3), "waiting": ticket.before}
        if ticket.compiling:
            fields["compiling"] = True
        return self._open + b"]," + _encode({"load_progress": fields})[1:] + b"\n\n"


def delta(text: str) -> bytes:
    """A content delta of a chat chunk."""
    return b'"delta":{"content":' + _encode(text) + b"}"


def chat_delta(event: ChatEvent) -> bytes:
    """The delta of one chat event; empty for events without one."""
    if isinstance(event, TextDelta):
        return delta(event.text)
    if isinstance(event, ReasoningDelta):
        return b'"delta":{"reasoning_content":' + _encode(event.text) + b"}"
    if isinstance(event, CallArguments):
        return b'"delta":{"tool_calls":[{"index":%d,"function":{"arguments":%s}}]}' % (
            event.index,
            _encode(event.delta),
        )
    if isinstance(event, CallStarted):
        call = {
            "index": event.index,
            "id": event.id,
            "type": "function",
            "function": {"name": event.name, "arguments": ""},
        }
        return b'"delta":{"tool_calls":[' + _encode(call) + b"]}"
    return b""


def _custom_call(index: int, custom: dict[str, str], call_id: str | None = None) -> bytes:
    """The delta of a custom tool call; `call_id` starts the call."""
    begins = {"id": call_id, "type": "custom"} if call_id is not None else {}
    return b'"delta":{"tool_calls":[' + _encode({"index": index, **begins, "custom": custom}) + b"]}"


class CustomCalls:
    """Custom tool calls of one response. Their text is sent in one chunk when its JSON is complete."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._pending: dict[int, str] = {}

    def deltas(self, event: ChatEvent) -> list[bytes] | None:
        """The deltas for this event; None if it does not belong to a custom tool call."""
        if isinstance(event, CallStarted) and event.name in self._names:
            self._pending[event.index] = ""
            return [_custom_call(event.index, {"name": event.name, "input": ""}, event.id)]
        if isinstance(event, CallArguments) and event.index in self._pending:
            self._pending[event.index] += event.delta
            return []
        if isinstance(event, CallEnded) and event.index in self._pending:
            return [self._end(event.index)]
        if isinstance(event, AnswerFinished):
            return [self._end(index) for index in tuple(self._pending)]
        return None

    def _end(self, index: int) -> bytes:
        return _custom_call(index, {"input": custom_input(self._pending.pop(index))})


class ChoiceBuilder:
    """One choice of a response that is not streamed."""

    def __init__(self, custom: frozenset[str]) -> None:
        self._custom = custom
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[TokenLogprob] = []
        self.end: AnswerFinished | None = None

    def take(self, event: ChatEvent) -> None:
        if isinstance(event, TextDelta):
            self._text.append(event.text)
        elif isinstance(event, ReasoningDelta):
            self._reasoning.append(event.text)
        elif isinstance(event, CallStarted):
            function = {"name": event.name, "arguments": ""}
            self._calls.append({"id": event.id, "type": "function", "function": function})
        elif isinstance(event, CallArguments):
            self._calls[event.index]["function"]["arguments"] += event.delta
        elif isinstance(event, AnswerLogprobs):
            self._logprobs.extend(event.entries)
        elif isinstance(event, AnswerFinished):
            self.end = event

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def body(self, index: int, *, logprobs: bool) -> dict[str, Any]:
        """The choice in OpenAI's format; reasoning is in `reasoning_content`, which clients read."""
        assert self.end is not None
        text = "".join(self._text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self._calls and not text else text,
            "refusal": None,
        }
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [chat_call(call, self._custom) for call in self._calls]
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(self._logprobs) if logprobs else None,
            "finish_reason": self.end.finish_reason,
        }


def report(
    notes: Iterable[str],
    ends: Mapping[int, Done | AnswerFinished],
    sampling: Chosen,
    also: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Tessera's report: the sampling with its sources, and changes to the request; `also` adds fields.

    Malformed tool calls and texts cut by the loop guard are listed per choice.
    """
    body: dict[str, Any] = {"sampling": sampling.facts(), **(also or {})}
    clock = current_clock()
    if clock is not None and clock.ran_on:
        body |= {"ran_on": sentence(clock.ran_on), "ran_on_detail": msgspec.to_builtins(clock.ran_on)}
    of_ends = [e.notes if isinstance(e, AnswerFinished) else end_notes(e) for e in ends.values()]
    if all_notes := list(dict.fromkeys([*notes, *itertools.chain.from_iterable(of_ends)])):
        body["notes"] = all_notes
    malformed = {i: end.malformed for i, end in ends.items() if isinstance(end, AnswerFinished)}
    broken = [{"choice": index, "text": text} for index, texts in malformed.items() for text in texts]
    if broken:
        body["malformed_tool_calls"] = broken
    cut = [{"choice": i, **msgspec.to_builtins(end.runaway)} for i, end in ends.items() if end.runaway is not None]
    if cut:
        body["runaway"] = cut
    return body


def with_report(report: dict[str, Any]) -> dict[str, Any]:
    """The report in its field `tessera`; no field for an empty report."""
    return {"tessera": report} if report else {}


ROLE_DELTA = b'"delta":{"role":"assistant","content":""}'
EMPTY_DELTA = b'"delta":{}'
DONE = b"data: [DONE]\n\n"
