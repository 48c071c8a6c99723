"""Base class of runner services: receives messages, sends heartbeats and events."""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from engine.core.startup_timing import StartupTimer
from engine.core.types import Constraint, ModelFacts
from engine.runner import protocol
from engine.runner.channel import Channel
from engine.runner.generation.scheduler import Output
from engine.runner.generation.vocabulary import Vocabulary
from engine.runner.tokenizer_threads import Prompt, TokenizerPool, text_of

V = TypeVar("V", bound=Vocabulary)


class RunnerService(Generic[V]):
    """Serves one model over a channel, until a Shutdown or the end of the server.

    Threads: one reads control messages, one sends heartbeats, three tokenize, and the caller of `run` owns the
    model. Subclasses implement loading, serving and cancelling, call `_take_texts` after the load, and set
    `_step_started` around each step.
    """

    def __init__(self, channel: Channel, engine: str) -> None:
        self._channel = channel
        self._engine = engine
        self._inbox: queue.SimpleQueue[protocol.ToRunner | Prompt] = queue.SimpleQueue()
        self._vocabulary: V | None = None
        self._texts: TokenizerPool | None = None
        self._step_started = 0.0
        self._phases = StartupTimer(from_start=True)
        self._phases.done("program")

    def run(self) -> int:
        """Serve; return the exit code."""
        self._channel.send(protocol.Hello(version=protocol.VERSION, engine=self._engine, pid=os.getpid()))
        threading.Thread(target=self._read, name="control", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        self._get_ready()
        self._phases.done("libraries")
        while True:
            message = self._inbox.get()
            if isinstance(message, protocol.Load):
                self._phases.done("no model yet")
                return self._serve() if self._load(message.settings) else 3
            if isinstance(message, protocol.Shutdown):
                return 0

    def _take_texts(self, vocabulary: V, n_ctx: int, compiled: Callable[[Constraint], Any]) -> None:
        """Start tokenizing and compiling constraints with these; `n_ctx` is the maximum prompt length."""
        self._vocabulary = vocabulary
        self._texts = TokenizerPool(vocabulary, n_ctx, self._inbox.put, self._channel.send, compiled)

    def _send_loaded(self, facts: ModelFacts) -> None:
        """Report that the model is ready, with the startup phases."""
        self._phases.done("ready")
        self._channel.send(protocol.Loaded(facts=msgspec.structs.replace(facts, phases=self._phases.all())))

    def _get_ready(self) -> None:
        """Prepare everything that does not depend on the model: the runner may have to wait for a model."""

    def _load(self, settings: protocol.LoadSettings) -> bool:
        """Load the model and send its facts, or the Fault that prevents it."""
        raise NotImplementedError

    def _serve(self) -> int:
        """Serve until a Shutdown; return the exit code."""
        raise NotImplementedError

    def _cancel_now(self, request_id: int) -> None:
        """Stop a step that runs for this request alone. Called on the control thread."""
        raise NotImplementedError

    def _answer_now(self, message: protocol.ToRunner) -> bool:  # noqa: ARG002 - most runners handle none here
        """Handle messages that need no queueing; return True if handled. Called on the control thread."""
        return False

    def _preempt_side_work(self) -> None:
        """Abort a step that serves only "side" requests, because another one waits.

        Called on the control thread.
        """

    def _read(self) -> None:
        """Control thread: passes texts to the tokenizer threads, even during a step; queues all other messages."""
        try:
            while True:
                message = self._channel.receive()
                if message is None:
                    self._leave(0)
                vocabulary = self._vocabulary
                text = text_of(message)
                if isinstance(message, protocol.Submit) and message.request.priority != "side":
                    self._preempt_side_work()
                if isinstance(message, protocol.Submit | protocol.Tokenize) and text is not None and self._texts:
                    self._texts.add(message, text)
                elif isinstance(message, protocol.Detokenize) and vocabulary is not None:
                    self._detokenize(message, vocabulary)
                else:
                    if isinstance(message, protocol.Cancel):
                        if self._texts is not None:
                            self._texts.cancel(message.id)
                        self._cancel_now(message.id)
                    if message is not None and not self._answer_now(message):
                        self._inbox.put(message)
        except Exception as error:  # noqa: BLE001 - any error of the peer must end the process
            sys.stderr.write(f"control channel: {error!r}\n")
            self._leave(4)

    def _leave(self, code: int) -> None:
        """End the process from any thread, even during a native call."""
        sys.stderr.flush()
        os._exit(code)

    def _beat(self) -> None:
        """Heartbeat thread: native calls release the GIL, so heartbeats continue during the longest step."""
        seen = step_s = 0.0
        while True:
            started = self._step_started
            # Count heartbeats instead of reading the clock: a system suspend must not count as step time.
            step_s = step_s + protocol.HEARTBEAT_S if started and started == seen else 0.0
            seen = started
            self._channel.send(protocol.Heartbeat(step_s=step_s, depth=self._prefill_depth()))
            time.sleep(protocol.HEARTBEAT_S)

    def _prefill_depth(self) -> int:
        """Tokens computed of the longest prompt being read. Called by the heartbeat thread."""
        return 0

    def _detokenize(self, message: protocol.Detokenize, vocabulary: Vocabulary) -> None:
        ids = range(vocabulary.size)
        pieces = [vocabulary.pieces[t] if t in ids else b"" for t in message.token_ids]
        self._channel.send(protocol.Pieces(id=message.id, pieces=pieces))

    def _send_outputs(self, outputs: list[Output]) -> None:
        """Send the output of a step: all events in one frame, then faults."""
        items = [o for o in outputs if isinstance(o, tuple)]
        if items:
            self._channel.send(protocol.Events(items=items))
        for output in outputs:
            if isinstance(output, protocol.Fault):
                self._channel.send(output)
