"""A runner without a model of its own: it starts `flm serve`, watches it, and passes chats on.

FastFlowLM keeps templates and tokenizers to itself, so the chat template of these models only writes the messages
down as JSON, and this runner hands them over. When `flm` ends, this process ends too, with its last words.
"""

import os
import sys
import threading
import time
from typing import Any, Final

import psutil

from engine.core.types import Delta, Done, FinishReason, ModelFacts, Started, Usage
from engine.flm.detect import TEMPLATE, tag_of
from engine.runner import protocol
from engine.runner.channel import Channel
from engine.runner.flm.chat import ChatFailed, ChatStream, refusal
from engine.runner.flm.server import FlmServer, StartFailed
from engine.runner.generation.times import AnswerTimes
from engine.runner.service import RunnerService

_DIED: Final = 6
# An answer that breaks off is blamed on a crash of `flm` if that shows within this time; its last words say more.
LAST_WORDS_S: Final = 1.0


class FlmRunner(RunnerService[Any]):
    """Serves one FastFlowLM model over a channel; requests run one after the other, as its server does."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel, "flm")
        self._server: FlmServer | None = None
        self._watcher: threading.Thread | None = None
        self._streams: dict[int, ChatStream] = {}
        self._cancelled: set[int] = set()
        self._generated = 0

    def _serve(self) -> int:
        while True:
            message = self._inbox.get()
            if isinstance(message, protocol.Shutdown):
                self._stop()
                return 0
            if isinstance(message, protocol.Submit):
                self._submit(message)

    def _cancel_now(self, request_id: int) -> None:
        self._cancelled.add(request_id)
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.close()

    def _answer_now(self, message: protocol.ToRunner) -> bool:
        if isinstance(message, protocol.StatsQuery):
            self._channel.send(self._stats(message.id))
        elif isinstance(message, protocol.Load | protocol.Submit | protocol.Shutdown):
            return False
        elif not isinstance(message, protocol.Cancel | protocol.Credit):
            self._refuse(message)
        return True

    def _leave(self, code: int) -> None:
        self._stop()
        super()._leave(code)

    def _stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    def _refuse(self, message: protocol.ToRunner) -> None:
        text = f"FastFlowLM does not answer {type(message).__name__}; its tokenizer is its own."
        self._channel.send(protocol.Fault(id=getattr(message, "id", None), code="not_supported", message=text))

    def _load(self, settings: protocol.LoadSettings) -> bool:
        tag = tag_of(settings.path)
        try:
            self._server = FlmServer(tag, settings.n_ctx)
            self._server.wait_ready(lambda f: self._channel.send(protocol.Progress(phase="flm", fraction=f)))
        except StartFailed as error:
            self._stop()
            self._channel.send(protocol.Fault(code="load_failed", message=str(error), param="model"))
            return False
        self._watcher = threading.Thread(target=self._watch, args=(self._server,), name="watch", daemon=True)
        self._watcher.start()
        facts = ModelFacts(
            architecture="flm",
            description=f"{tag} (FastFlowLM, NPU)",
            n_params=0,
            size_bytes=0,
            n_vocab=0,
            n_ctx=settings.n_ctx,
            n_ctx_train=settings.n_ctx,
            n_parallel=1,
            n_embd=0,
            chat_template=TEMPLATE,
            bos="",
            eos="",
            add_bos=False,
            fim={},
            metadata={},
            backend="flm",
        )
        self._send_loaded(facts)
        return True

    def _watch(self, server: FlmServer) -> None:
        """End with the server: the pool then knows why, and starts both again at the next request."""
        code = server.wait()
        sys.stderr.write(f"flm ended with code {code}: {server.last_line}\n")
        sys.stderr.flush()
        os._exit(_DIED)

    def _submit(self, message: protocol.Submit) -> None:
        assert self._server is not None
        fault = refusal(message)
        if fault is not None:
            self._channel.send(fault)
            return
        times = AnswerTimes()
        times.admitted = times.submitted
        stream = self._streams[message.id] = ChatStream(self._server, message.request)
        reason: FinishReason = "cancelled"
        try:
            self._events(message.id, Started(prompt_tokens=0, cached_tokens=0))
            for text in stream.texts() if message.id not in self._cancelled else ():
                times.sampled(time.monotonic())
                self._events(message.id, Delta(text=text))
            if message.id not in self._cancelled:
                reason = stream.finish_reason
        except ChatFailed as error:
            if message.id not in self._cancelled:
                if self._watcher is not None:
                    self._watcher.join(LAST_WORDS_S)  # does not return where it ends this process
                self._channel.send(protocol.Fault(id=message.id, code="engine_failed", message=str(error)))
                return
        finally:
            self._streams.pop(message.id, None)
            self._cancelled.discard(message.id)
        self._generated += stream.completion_tokens
        usage = Usage(prompt_tokens=stream.prompt_tokens, completion_tokens=stream.completion_tokens)
        self._events(message.id, Done(finish_reason=reason, usage=usage, timings=times.timings()))

    def _events(self, request_id: int, event: Any) -> None:
        self._channel.send(protocol.Events(items=[(request_id, event)]))

    def _stats(self, stats_id: int) -> protocol.Stats:
        rss = self._server.rss_bytes if self._server is not None else psutil.Process().memory_info().rss
        return protocol.Stats(
            id=stats_id,
            steps=self._generated,
            generated_tokens=self._generated,
            active=len(self._streams),
            waiting=self._inbox.qsize(),
            rss_bytes=rss,
        )
