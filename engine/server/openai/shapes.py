"""OpenAI answers: whole objects as dicts, stream chunks as bytes around one encoded string."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.chat.conversation import AnswerFinished, ChatEvent
from engine.chat.events import CallArguments, CallStarted, ReasoningDelta, TextDelta
from engine.server.body import Body
from engine.types import Done, TokenLogprob, Usage

_encode = msgspec.json.encode


def new_id(prefix: str, separator: str = "-") -> str:
    """An id such as `chatcmpl-…`."""
    return f"{prefix}{separator}{secrets.token_hex(12)}"


def ignored_header(body: Body) -> dict[str, str]:
    """The header that names fields of a request that this server does not know."""
    return {"x-tessera-ignored": header_list(body.ignored())} if body.ignored() else {}


def header_list(names: list[str]) -> str:
    """Names that a client chose, safe in a header."""
    shown = (name[:64].encode("ascii", "replace").decode() for name in names[:20])
    return ", ".join("".join(c if c.isprintable() else "?" for c in name) for name in shown)


def usage_body(usages: list[Usage]) -> dict[str, Any]:
    """Usage of all choices: the prompt is counted once."""
    prompt = usages[0].prompt_tokens if usages else 0
    completion = sum(u.completion_tokens for u in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usages[0].cached_tokens if usages else 0},
    }


def timings_body(done: Done | AnswerFinished) -> dict[str, float]:
    """Tessera's extra field: where the time of a request went, in seconds, its speed, and its guesses."""
    t = done.timings
    gaps = max(done.usage.completion_tokens - 1, 0)
    drafts = {"draft_n": t.draft_tokens, "draft_n_accepted": t.draft_accepted} if t.draft_tokens else {}
    return {
        "queue_s": round(t.queue_s, 6),
        "prefill_s": round(t.prefill_s, 6),
        "ttft_s": round(t.ttft_s, 6),
        "decode_s": round(t.decode_s, 6),
        "tok_s": round(gaps / t.decode_s, 2) if t.decode_s > 0 else 0.0,
        **drafts,
    }


def chat_logprob(entry: TokenLogprob) -> dict[str, Any]:
    """One token in chat form."""
    return {
        **_named(entry.piece, entry.logprob),
        "top_logprobs": [_named(piece, logprob) for _, piece, logprob in entry.top],
    }


def _named(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": max(logprob, -9999.0)}


class ChunkWriter:
    """Encodes the stream chunks of one response. All that does not change is encoded once."""

    def __init__(self, kind: str, response_id: str, model: str) -> None:
        head = {"id": response_id, "object": kind, "created": int(time.time()), "model": model}
        self._open = b"data: " + json.dumps(head).encode()[:-1] + b', "choices": ['

    def chunk(
        self,
        index: int,
        inner: bytes,
        finish_reason: str | None = None,
        logprobs: object = None,
        extra: dict[str, Any] | None = None,
    ) -> bytes:
        """One choice; `inner` is its encoded content, such as `"delta":{...}`; `extra` is Tessera's report."""
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

    def usage(self, usages: list[Usage], timings: dict[str, float]) -> bytes:
        """The last chunk when the client asked for usage: no choices."""
        tail = _encode({"usage": usage_body(usages), "timings": timings})
        return self._open + b"]," + tail[1:] + b"\n\n"


def delta(text: str) -> bytes:
    """A content delta of a chat chunk."""
    return b'"delta":{"content":' + _encode(text) + b"}"


def chat_delta(event: ChatEvent) -> bytes:
    """The delta of one chat event; nothing for those that have none."""
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


def report(notes: Sequence[str], malformed: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    """What was changed on the way in, and the attempts at calls that nothing could be made of, by choice."""
    body: dict[str, Any] = {}
    if notes:
        body["notes"] = list(notes)
    broken = [{"choice": index, "text": text} for index, texts in malformed.items() for text in texts]
    if broken:
        body["malformed_tool_calls"] = broken
    return body


ROLE_DELTA = b'"delta":{"role":"assistant","content":""}'
EMPTY_DELTA = b'"delta":{}'
DONE = b"data: [DONE]\n\n"
