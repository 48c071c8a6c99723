"""Responses in llama-server's format."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final, cast

import msgspec

from engine.chat.chat_pipeline import end_notes
from engine.core.sampling import Chosen
from engine.core.types import Delta, Done, Event, Started, TokenLogprob
from engine.pool.loaded_model import LoadedModel
from engine.server.llama_server.schemas import NativeRequest
from engine.server.openai.schemas import limit_of

_STOP_TYPES: Final = {"length": "limit", "stop": "eos", "cancelled": "limit", "error": "none"}


async def limited(
    events: AsyncIterator[Event], limit_ms: float | None, n_indent: int = 0
) -> AsyncGenerator[Event, None]:
    """The events within llama-server's limits for completions of several lines; the first line is always complete.

    limit_ms: time from the first text, after which the text ends at once.
    n_indent: the text ends before a line with less indentation than this: it would leave the block of the cursor.
    """
    started_at = 0.0
    several = False
    lines = _Lines(n_indent)
    # Leaving early must end the generation immediately, not at garbage collection.
    async with aclosing(cast("AsyncGenerator[Event, None]", events)) as source:
        async for event in source:
            if isinstance(event, Delta):
                started_at = started_at or time.monotonic()
                if limit_ms and several and (time.monotonic() - started_at) * 1000 > limit_ms:
                    return
                several = several or "\n" in event.text
                yield msgspec.structs.replace(event, text=lines.feed(event.text)) if n_indent else event
                if lines.ended:
                    return
                continue
            if isinstance(event, Done) and lines.held:
                yield Delta(text=lines.held)
            yield event


class _Lines:
    """Ends a text before a line with less indentation than `n_indent`.

    Withholds a line's start until that is known.
    """

    def __init__(self, n_indent: int) -> None:
        self._n_indent = n_indent
        self.held = ""
        self.ended = False

    def feed(self, text: str) -> str:
        """The text that may be given now."""
        text, self.held, begin_at = self.held + text, "", 0
        while (end := text.find("\n", begin_at)) >= 0:
            begin = next((i for i in range(end, len(text)) if not text[i].isspace()), None)
            at = end - text.endswith("\r", 0, end)
            if begin is None:
                self.held = text[at:]
                return text[:at]
            if begin - text.rfind("\n", end, begin) - 1 < self._n_indent:
                self.ended = True
                return text[:at]
            begin_at = begin
        if text.endswith("\r"):
            self.held = "\r"
        return text.removesuffix("\r")


def ended(
    model: LoadedModel, started: Started, done: Done | None, *, truncated: bool, num_tokens: int = 0
) -> dict[str, Any]:
    """The final fields in llama-server's format, with times in milliseconds.

    num_tokens: tokens of the text so far, for a text that a limit of `limited` ended before its `Done`.
    """
    generated = done.usage.completion_tokens if done else num_tokens
    times = done.timings if done else None
    decode_ms = round(times.decode_s * 1000, 3) if times else 0.0
    prompt_ms = round(times.prefill_s * 1000, 3) if times else 0.0
    gaps = max(generated - 1, 0)
    fresh = started.prompt_tokens - started.cached_tokens
    return {
        "stop": True,
        "model": model.id,
        "tokens_predicted": generated,
        "tokens_evaluated": started.prompt_tokens,
        "tokens_cached": started.cached_tokens,
        "truncated": truncated,
        "stop_type": "word" if done and done.stop else _STOP_TYPES[done.finish_reason] if done else "limit",
        "stopping_word": (done.stop if done else None) or "",
        "timings": {
            "cache_n": started.cached_tokens,
            "prompt_n": fresh,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / fresh if fresh else 0.0,
            "prompt_per_second": fresh / prompt_ms * 1000 if prompt_ms else 0.0,
            "predicted_n": generated,
            "predicted_ms": decode_ms,
            "predicted_per_token_ms": decode_ms / gaps if gaps else 0.0,
            "predicted_per_second": gaps / decode_ms * 1000 if decode_ms else 0.0,
        },
    }


def chosen_fields(answer: dict[str, Any], names: list[str] | None) -> dict[str, Any]:
    """Only the requested fields; "a/b" selects b inside a, returned under the name "a/b"."""
    if not names:
        return answer
    chosen = {}
    for name in names:
        value: Any = answer
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            chosen[name] = value
    return chosen


def sse(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class CompletionAnswer:
    """Response to one prompt."""

    def __init__(
        self, model: LoadedModel, body: NativeRequest, sampling: Chosen, index: int, notes: tuple[str, ...] = ()
    ) -> None:
        self._model = model
        self._body = body
        self._sampling = sampling
        self._index = index
        self._notes = notes
        prompt = body.prompts()[index]
        self._prompt = prompt if isinstance(prompt, str) else ""
        self._started = Started(prompt_tokens=0, cached_tokens=0)
        self._done: Done | None = None
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._entries: list[TokenLogprob] = []

    def feed(self, event: Event) -> dict[str, Any] | None:
        """The stream chunk for an event, or None."""
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, Done):
            self._done = event
        elif isinstance(event, Delta):
            self._text.append(event.text)
            self._tokens += event.token_ids
            self._entries += event.logprobs
            payload = {"index": self._index, "content": event.text, "tokens": list(event.token_ids), "stop": False}
            counts = {"tokens_predicted": len(self._tokens), "tokens_evaluated": self._started.prompt_tokens}
            return {**payload, **counts, **self._probabilities(list(event.logprobs))}
        return None

    def end(self, content: str | None = None) -> dict[str, Any]:
        """The complete response. `content` replaces its text at the end of a stream, which has already sent it."""
        streamed = content is not None
        notes = [*self._notes, *(() if self._done is None else end_notes(self._done))]
        settings = {
            **msgspec.structs.asdict(self._sampling.params),
            "n_predict": limit_of(self._body.n_predict, self._body.max_tokens),
            "stop": list(self._body.stops()),
            "stream": streamed,
        }
        payload = {
            "index": self._index,
            "content": "".join(self._text) if content is None else content,
            "prompt": self._prompt,
            "tokens": [] if streamed or not self._body.return_tokens else self._tokens,
            "id_slot": -1,
            **ended(self._model, self._started, self._done, truncated=False, num_tokens=len(self._tokens)),
            "generation_settings": settings,
            "tessera": {"sampling": self._sampling.facts(), **({"notes": notes} if notes else {})},
            "has_new_line": any("\n" in text for text in self._text),
        }
        return chosen_fields({**payload, **({} if streamed else self._probabilities(self._entries))}, self._fields)

    @property
    def _fields(self) -> list[str] | None:
        return self._body.response_fields

    def _probabilities(self, entries: list[TokenLogprob]) -> dict[str, Any]:
        if not self._body.n_probs:
            return {}
        return {"completion_probabilities": [_probability(entry) for entry in entries]}


def _probability(entry: TokenLogprob) -> dict[str, Any]:
    tops = [_token_entry(token, piece, value) for token, piece, value in entry.top]
    return {**_token_entry(entry.token_id, entry.piece, entry.logprob), "top_logprobs": tops}


def _token_entry(token: int, piece: bytes, logprob: float) -> dict[str, Any]:
    text = piece.decode("utf-8", "replace")
    return {"id": token, "token": text, "bytes": list(piece), "logprob": max(logprob, -9999.0)}
