"""One chat with FastFlowLM's OpenAI-style server, as a stream of texts."""

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx2

from engine.core.open_sockets import OpenSockets
from engine.core.types import FinishReason, GenerationRequest
from engine.runner.flm.server import FlmServer
from engine.runner.protocol import Fault, Submit

# The first token of a long prompt on an NPU takes this long at most; a dead server is noticed by its process.
READ_S: Final = 600.0
_MAX_LINE: Final = 1 << 20


class ChatFailed(Exception):
    """FastFlowLM refused or broke off the answer; the message says how."""


def refusal(message: Submit) -> Fault | None:
    """What a request asks that FastFlowLM cannot do; None when it can."""
    request, sampling = message.request, message.request.sampling
    asked = {
        "response_format": request.constraint is not None,
        "logprobs": request.logprobs is not None,
        "logit_bias": bool(sampling.logit_bias),
        "lora": bool(request.lora),
        "messages": bool(request.images),
    }
    param = next((name for name, wanted in asked.items() if wanted), None)
    if param is not None:
        return _fault(
            message.id, f"FastFlowLM does not do {param}; choose a model that runs on the CPU or GPU.", param
        )
    try:
        messages_of(request.prompt)
    except ValueError:
        return _fault(message.id, "FastFlowLM answers chats only, not a bare prompt.", "prompt")
    return None


def _fault(request_id: int, text: str, param: str) -> Fault:
    return Fault(id=request_id, code="invalid_request", message=text, param=param)


class ChatStream:
    """A request on its way. `close` may be called from another thread."""

    def __init__(self, server: FlmServer, request: GenerationRequest) -> None:
        self._server = server
        self._request = request
        self._closed = False
        self._sockets = OpenSockets()
        self._complete = False
        self._client = httpx2.Client(
            base_url=server.url, timeout=httpx2.Timeout(READ_S, connect=5), trust_env=False
        )
        self.finish_reason: FinishReason = "stop"
        self.prompt_tokens = 0
        self.completion_tokens = 0

    def close(self) -> None:
        """Hang up: FastFlowLM stops when nobody listens."""
        self._closed = True
        self._sockets.hang_up()
        self._client.close()

    def texts(self) -> Iterator[str]:
        """Pieces of the answer. Raises: ChatFailed."""
        try:
            watch = {"trace": self._sockets.trace}
            route = "/v1/chat/completions"
            with self._client.stream("POST", route, json=self._body(), extensions=watch) as response:
                if response.status_code != httpx2.codes.OK:
                    said = response.read()[:500].decode("utf-8", "replace")
                    raise ChatFailed(f"FastFlowLM answered {response.status_code}: {said}")
                for line in response.iter_lines():
                    if self._closed:
                        return
                    yield from self._taken(line[:_MAX_LINE])
            if not self._complete and not self._closed:  # its answers have no length: a crash looks like an end
                raise ChatFailed("FastFlowLM broke off the answer: it hung up in the middle")
        except httpx2.HTTPError as error:
            raise ChatFailed(f"FastFlowLM broke off the answer: {error}") from error
        except RuntimeError as error:  # the client was closed in the middle
            raise ChatFailed("the request was cancelled") from error
        finally:
            self._client.close()

    def _taken(self, line: str) -> Iterator[str]:
        if not line.startswith("data:"):
            return
        if line[5:].strip() == "[DONE]":
            self._complete = True
            return
        try:
            chunk = json.loads(line[5:])
        except ValueError as error:
            raise ChatFailed(f"FastFlowLM sent an unreadable line: {line[:100]}") from error
        usage = chunk.get("usage") or {}
        self.prompt_tokens = int(usage.get("prompt_tokens", self.prompt_tokens))
        self.completion_tokens = int(usage.get("completion_tokens", self.completion_tokens))
        for choice in chunk.get("choices", ()):
            text = (choice.get("delta") or {}).get("content")
            if text:
                yield str(text)
            if choice.get("finish_reason"):
                self._complete = True
            if choice.get("finish_reason") == "length":
                self.finish_reason = "length"

    def _body(self) -> dict[str, Any]:
        request, sampling = self._request, self._request.sampling
        asked = messages_of(request.prompt)
        body: dict[str, Any] = {"model": self._server.tag, "stream": True, "messages": asked["messages"]}
        if asked.get("tools"):
            body["tools"] = asked["tools"]
        if request.max_tokens is not None:
            body["max_tokens"] = request.max_tokens
        body |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        given = {
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "stop": list(request.stop),
        }
        body |= {name: value for name, value in given.items() if value}
        if sampling.repeat_penalty != 1:
            body["repetition_penalty"] = sampling.repeat_penalty
        return body


def messages_of(prompt: str | list[int]) -> dict[str, Any]:
    """What the template wrote down. Raises: ValueError: it is something else."""
    value = json.loads(prompt) if isinstance(prompt, str) else None
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        raise ValueError("no messages")  # noqa: TRY004 - one error for one cause
    return value
