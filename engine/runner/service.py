"""Base class of runner services: receives messages, tokenizes texts in threads, sends heartbeats and events."""

import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from engine.core.errors import ConstraintRefused
from engine.core.startup_timing import StartupTimer
from engine.core.types import Constraint, ModelFacts
from engine.runner import protocol
from engine.runner.generation.scheduler import Output
from engine.runner.generation.vocabulary import Vocabulary
from engine.runner.text_limits import TOKENIZE_CHARS, Stopped, TooManyTokens

V = TypeVar("V", bound=Vocabulary)


class RunnerService(Generic[V]):
    """Serves one model over a channel, until a Shutdown or the end of the server.

    Threads: one reads control messages, one sends heartbeats, three tokenize, and the caller of `run` owns the
    model. Subclasses implement loading, serving and cancelling, call `_take_texts` after the load, and set
    `_step_started` around each step.
    """

    def __init__(self, channel: protocol.Channel, engine: str) -> None:
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


# Tokenizes prompts and compiles constraints in threads, so that neither steps nor short texts wait.

# About 4,000 tokens, which take a few milliseconds.
SHORT_CHARS: Final = 16 << 10
Text = protocol.Submit | protocol.Tokenize


class Prompt(msgspec.Struct, frozen=True):
    """A submitted request with its tokens (None: its text contains images) and its compiled constraint."""

    message: protocol.Submit
    tokens: list[int] | None
    constraint: Any = None


def text_of(message: object) -> str | None:
    """Return the text to process in these threads; None if there is nothing to do.

    A prompt of ids or with images counts as empty text if its constraint must be compiled.
    """
    if isinstance(message, protocol.Tokenize):
        return message.text
    if not isinstance(message, protocol.Submit):
        return None
    if isinstance(message.request.prompt, str) and not message.request.images:
        return message.request.prompt
    return "" if message.request.constraint is not None else None


def too_long(request_id: int, at_least: int, n_ctx: int) -> protocol.Fault:
    """Return the Fault of a prompt that is longer than the context and was not fully tokenized."""
    facts: dict[str, int | float | str | None] = {
        "prompt_tokens": at_least,
        "context_tokens": n_ctx,
        "at_least": 1,
    }
    return protocol.Fault(id=request_id, code="context_length_exceeded", message="", facts=facts)


class TokenizerPool:
    """Three threads: for short texts, for long ones (shortest first), and for prompts with a constraint.

    A `Prompt` goes to `deliver`; requested tokens and faults go to `send`. `n_ctx` limits prompts; `compiled`
    compiles a constraint, which may take seconds.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        n_ctx: int,
        deliver: Callable[[Prompt], None],
        send: Callable[[protocol.FromRunner], None],
        compiled: Callable[[Constraint], Any],
    ) -> None:
        self._vocabulary = vocabulary
        self._n_ctx = n_ctx
        self._deliver = deliver
        self._send = send
        self._compiled = compiled
        self._order = itertools.count()
        self._pending: dict[int, bool] = {}  # id: cancelled
        self._lock = threading.Lock()
        self._short: queue.PriorityQueue[tuple[int, int, Text]] = queue.PriorityQueue()
        self._long: queue.PriorityQueue[tuple[int, int, Text]] = queue.PriorityQueue()
        self._formed: queue.PriorityQueue[tuple[int, int, Text]] = queue.PriorityQueue()
        for name, texts in (("texts", self._short), ("long-texts", self._long), ("formats", self._formed)):
            threading.Thread(target=self._work, args=(texts,), name=name, daemon=True).start()

    def add(self, message: Text, text: str) -> None:
        with self._lock:
            self._pending[message.id] = False
        short = len(text) <= SHORT_CHARS
        formed = isinstance(message, protocol.Submit) and message.request.constraint is not None
        texts = self._formed if formed else self._short if short else self._long
        texts.put((0 if short else len(text), next(self._order), message))

    def cancel(self, request_id: int) -> None:
        """Cancel a request: it is dropped, or stopped at its next part."""
        with self._lock:
            if request_id in self._pending:
                self._pending[request_id] = True

    def _work(self, texts: "queue.PriorityQueue[tuple[int, int, Text]]") -> None:
        while True:
            _, _, message = texts.get()
            try:
                self._tokenize(message)
            except Stopped:
                pass
            except ConstraintRefused as error:
                self._send(
                    protocol.Fault(
                        id=message.id, code="invalid_request", message=str(error), param="response_format"
                    )
                )
            except Exception as error:  # noqa: BLE001 - one text must not end the thread
                sys.stderr.write(f"tokenizing: {error!r}\n")
                self._send(
                    protocol.Fault(id=message.id, code="internal", message="The text could not be tokenized.")
                )
            finally:
                with self._lock:
                    self._pending.pop(message.id, None)

    def _tokenize(self, message: Text) -> None:
        def stopped() -> bool:
            return self._pending.get(message.id, False)

        if isinstance(message, protocol.Tokenize):
            self._count(message, stopped)
            return
        tokens = self._tokens(message, stopped)
        if tokens is None and isinstance(message.request.prompt, str) and not message.request.images:
            return
        constraint = None if message.request.constraint is None else self._compiled(message.request.constraint)
        with self._lock:  # a cancel comes before this, or finds the request in the scheduler
            if self._pending.pop(message.id, True):
                return
            self._deliver(Prompt(message, tokens, constraint))

    def _tokens(self, message: protocol.Submit, stopped: Callable[[], bool]) -> list[int] | None:
        """Return the prompt's tokens; None if it has images, or does not fit (this has been reported)."""
        request = message.request
        if isinstance(request.prompt, list):
            return request.prompt
        if request.images:
            return None
        try:
            return self._vocabulary.tokenize(
                request.prompt,
                add_special=request.add_special,
                parse_special=request.parse_special,
                limit=self._n_ctx,
                stopped=stopped,
            )
        except TooManyTokens as error:
            self._send(too_long(message.id, error.at_least, self._n_ctx))
            return None

    def _count(self, message: protocol.Tokenize, stopped: Callable[[], bool]) -> None:
        if len(message.text) > TOKENIZE_CHARS:
            words = f"The text has {len(message.text)} characters; at most {TOKENIZE_CHARS} are tokenized at once."
            self._send(protocol.Fault(id=message.id, code="invalid_request", message=words, param="content"))
            return
        tokens = self._vocabulary.tokenize(
            message.text, add_special=message.add_special, parse_special=message.parse_special, stopped=stopped
        )
        self._send(protocol.Tokens(id=message.id, token_ids=tokens))


T = TypeVar("T")

# Maximum wait before other work is checked.
SLICE_S: Final = 0.25
# Maximum owed pause, so that pauses do not grow without limit.
MAX_OWED_S: Final = 10.0


class DutyCycle:
    """Tracks the owed pause `owed_s`, which grows with every step. Report other waits with `waited`."""

    def __init__(self) -> None:
        self.duty = 1.0
        self.owed_s = 0.0

    def set(self, duty: float) -> None:
        """Let steps run at most this fraction of the time."""
        self.duty = min(1.0, max(0.01, duty))
        if self.duty == 1.0:
            self.owed_s = 0.0

    def stepped(self, seconds: float) -> None:
        """Record the duration of a step."""
        self.owed_s = min(MAX_OWED_S, self.owed_s + seconds * (1 / self.duty - 1))

    def pause(self, inbox: "queue.SimpleQueue[T]") -> T | None:
        """Pause for part of the owed time; return early with a message if one arrives."""
        if not self.owed_s:
            return None
        started_at = time.monotonic()
        try:
            return inbox.get(timeout=min(SLICE_S, self.owed_s))
        except queue.Empty:
            return None
        finally:
            self.waited(time.monotonic() - started_at)

    def waited(self, seconds: float) -> None:
        """Subtract an idle time from the owed pause."""
        self.owed_s = max(0.0, self.owed_s - seconds)
