"""The server's side of one runner, which starts it, exchanges messages and reports why it exited."""

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.child_command import child_command
from devices.environment import without_secrets
from devices.errors import TesseraError
from devices.llama_cpp_versions.folder import child_variables, chosen_version
from devices.process_memory import bound_memory
from engine.core.errors import ContextOverflow, FileRefused, RunnerDied
from engine.core.sampling import refuse_impossible
from engine.core.types import Delta, Done, Event, GenerationRequest, ModelFacts
from engine.message_catalog.reasons import Reason, because
from engine.runner import orphans, protocol
from engine.runner.exit_reasons import exit_reason, file_to_blame
from engine.runner.faults import fault_to_error
from engine.runner.pipes import BufferLog, Pipes
from engine.runner.watchdog import Watchdog

log = logging.getLogger(__name__)

STDERR_LINES: Final = 200
# Frames that arrive faster than this are processed together: waking up costs more than handling a token.
# Measured: log-archive.md, server.
GATHER_S: Final = 0.001
SHUTDOWN_S: Final = 3.0
# Deltas received before the runner gets credit: one control frame for many tokens.
CREDIT_STEP: Final = 16

_job = orphans.kill_on_close_job()
_living: "weakref.WeakSet[RunnerProcess]" = weakref.WeakSet()


class RunnerProcess:
    """One child process that serves one model. Use from one event loop."""

    def __init__(self, process: asyncio.subprocess.Process, pipes: Pipes, path: str) -> None:
        self._process = process
        self._path = path
        self.loop = asyncio.get_running_loop()
        self._next_id = 0
        self._mailboxes: dict[int, Mailbox] = {}
        self._num_embeds = 0
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._hello: asyncio.Future[protocol.Hello] = asyncio.get_running_loop().create_future()
        self._loaded: asyncio.Future[ModelFacts] = asyncio.get_running_loop().create_future()
        for future in (self._hello, self._loaded):
            future.add_done_callback(_retrieve)
        self._phase = ""  # phase of the load
        self._on_progress: Callable[[str, float], None] = lambda _phase, _fraction: None
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self.buffers = BufferLog()
        self._stderr_task = asyncio.create_task(self._read_stderr())
        self._exit_task = asyncio.create_task(self._until_exit())
        self._frames = protocol.FrameReader()
        self._unreadable: str | None = None
        self._late: bytes | None = None  # not None: frames are gathered
        self._stopping = False
        self._stuck: Reason | None = None
        self._watchdog = Watchdog(process.pid, self._give_up)
        self.on_context_wanted: Callable[[protocol.ContextWanted], None] = self._refuse_context
        self.on_rows_recorded: Callable[[protocol.RowsRecorded], None] = lambda _recorded: None
        self.died: RunnerDied | None = None
        self.facts: ModelFacts | None = None
        self.last_message_at = time.monotonic()
        self.prefill_depth = 0  # tokens computed of the longest prompt being read, at the last heartbeat
        pipes.deliver(self._receive)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the child runs and its connection works."""
        return self.died is None and self._process.returncode is None

    @property
    def active_requests(self) -> int:
        """Number of unfinished generations and embeddings."""
        return len(self._mailboxes) + self._num_embeds

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The newest lines that the child wrote to stderr."""
        return tuple(self._stderr)

    @classmethod
    async def start(cls, engine: str, path: str, env: Mapping[str, str] | None = None) -> "RunnerProcess":
        """Start a runner and wait for its hello.

        Raises: RunnerDied: it exited, or uses another protocol version.
        """
        pipes = Pipes()
        environment = runner_environment({**(child_variables(path) if path else {}), **(env or {})})
        process = await pipes.start(runner_command(engine), environment)
        orphans.assign_to_job(_job, process.pid)
        bound_memory(process.pid)
        runner = cls(process, pipes, path)
        _living.add(runner)
        try:
            hello = await runner._hello
        except BaseException:  # after a failure or cancellation nothing else would stop the runner
            await runner.end()
            raise
        if hello.version != protocol.VERSION:
            await runner.stop()
            raise RunnerDied(None, f"the runner speaks protocol {hello.version}, this server {protocol.VERSION}")
        return runner

    async def load(
        self, settings: protocol.LoadSettings, on_progress: Callable[[str, float], None] | None = None
    ) -> ModelFacts:
        """Load the model.

        Raises: BadModelFile: refused by llama.cpp; RunnerDied: the child exited during the load; any exception of
        `on_progress`, which stops the wait.
        """
        if on_progress is not None:
            self._on_progress = on_progress
        self._path = settings.path
        self._watchdog.loads(settings)
        await self._send(protocol.Load(settings=settings))
        self.facts = await self._loaded
        return self.facts

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Event]:
        """Run one request; leaving the iterator early cancels it.

        Raises: ContextOverflow, InputFault, RequestFailed, RunnerDied.
        """
        if self.died is not None:
            raise self.died
        if self.facts is not None:
            refuse_impossible(self.facts, len(request.prompt), text=isinstance(request.prompt, str))
        request_id = self._new_id()
        mailbox = self._mailboxes[request_id] = Mailbox()
        finished = False
        num_events = 0
        try:
            await self._send(protocol.Submit(id=request_id, request=request))
            while not finished:
                item = await mailbox.get()
                if isinstance(item, Delta):
                    num_events += 1
                    if num_events >= CREDIT_STEP:
                        self._post(protocol.Credit(id=request_id, count=num_events))
                        num_events = 0
                elif isinstance(item, TesseraError):
                    finished = True
                    raise item
                else:
                    finished = isinstance(item, Done)
                yield item
        finally:
            del self._mailboxes[request_id]
            if not finished:
                self._post(protocol.Cancel(id=request_id))

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        query = protocol.Tokenize(
            id=self._new_id(), text=text, add_special=add_special, parse_special=parse_special
        )
        try:
            reply = await self._ask(query)
        except asyncio.CancelledError:
            self._post(protocol.Cancel(id=query.id))
            raise
        return list(reply.token_ids)

    async def detokenize(self, token_ids: list[int]) -> list[bytes]:
        reply = await self._ask(protocol.Detokenize(id=self._new_id(), token_ids=token_ids))
        return list(reply.pieces)

    async def embed(
        self,
        inputs: list[str | list[int]],
        *,
        normalize: bool = True,
        query: str | None = None,
        truncate: bool = False,
        quick: bool = False,
    ) -> protocol.Embedded:
        """Return the embeddings of the inputs, or their rerank scores for `query`. Cancelling stops the work.

        Raises: InputFault, ContextOverflow, RequestFailed, RunnerDied.
        """
        if self.facts is not None:
            for item in inputs:
                refuse_impossible(self.facts, len(item), text=isinstance(item, str))
        message = protocol.Embed(
            id=self._new_id(), inputs=inputs, normalize=normalize, query=query, truncate=truncate, quick=quick
        )
        self._num_embeds += 1
        try:
            reply = await self._ask(message)
        except asyncio.CancelledError:
            self._post(protocol.Cancel(id=message.id))
            raise
        finally:
            self._num_embeds -= 1
        assert isinstance(reply, protocol.Embedded)
        return reply

    async def stats(self) -> protocol.Stats:
        reply = await self._ask(protocol.StatsQuery(id=self._new_id()))
        assert isinstance(reply, protocol.Stats)
        return reply

    async def resize(self, n_ctx: int, kv_cells: int, *, through_disk: bool = False) -> protocol.Resized:
        """Resize the context to `n_ctx` tokens per sequence and `kv_cells` cells; generations pause meanwhile.

        `through_disk`: main memory has no space for copies of the computed states.

        Raises: RequestFailed: the size is unchanged. RunnerDied.
        """
        query = protocol.Resize(id=self._new_id(), n_ctx=n_ctx, kv_cells=kv_cells, through_disk=through_disk)
        reply = await self._ask(query)
        assert isinstance(reply, protocol.Resized)
        if self.facts is not None:
            self.facts = msgspec.structs.replace(self.facts, n_ctx=reply.n_ctx)
        return reply

    def keep_context(self, request: protocol.ContextWanted, error: TesseraError) -> None:
        """Refuse to grow the context for this request: fail it with `error` if it needs that."""
        self._post(protocol.ContextKept(id=request.id))
        mailbox = self._mailboxes.get(request.id)
        if mailbox is not None and not request.goes_on:
            mailbox.put(error)

    def _refuse_context(self, request: protocol.ContextWanted) -> None:
        n_ctx = self.facts.n_ctx if self.facts is not None else 0
        self.keep_context(request, ContextOverflow(request.tokens - 1, n_ctx))

    def pace(self, pace: protocol.Pace) -> None:
        """Limit the threads of steps and the fraction of time that they run."""
        self._post(pace)

    async def stop(self) -> None:
        """Stop the child: request a shutdown, then kill it if it is stuck."""
        self._stopping = True
        self._post(protocol.Shutdown())
        ended = await self._watchdog.sees_end(self._process.wait(), SHUTDOWN_S)
        saving = self._watchdog.saving
        if not ended:
            log.warning("killed pid=%d path=%s bytes_not_stored=%d", self.pid, self._path, saving.left_bytes)
            self.kill()
            await self._process.wait()
        if saving.problem:
            log.warning("prefixes are not stored path=%s: %s", self._path, saving.problem)
        await asyncio.gather(self._exit_task, self._stderr_task)

    @staticmethod
    def kill_all() -> None:
        """Kill all runners now: the user does not want to wait for what they store."""
        for runner in list(_living):
            runner.kill()

    @staticmethod
    async def end_all() -> None:
        """End all remaining runners and wait: asyncio warns about processes that are left when the loop closes."""
        loop = asyncio.get_running_loop()
        living = [runner for runner in list(_living) if runner.loop is loop]
        if living:
            await asyncio.gather(*(runner.end() for runner in living))
            await asyncio.sleep(0)  # lets their pipes close

    async def end(self) -> None:
        self.kill()
        await asyncio.wait([self._exit_task, self._stderr_task], timeout=SHUTDOWN_S)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    # ------------------------------------------------------------------ internals

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    async def _ask(self, query: Any) -> Any:
        if self.died is not None:
            raise self.died
        future = self._replies[query.id] = asyncio.get_running_loop().create_future()
        try:
            await self._send(query)
            return await future
        finally:
            self._replies.pop(query.id, None)

    def _post(self, message: protocol.ToRunner) -> None:
        """Send without waiting; ignores a dead child's closed pipe."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.is_closing() and self.alive:
            pipe.write(protocol.frame(message))

    async def _send(self, message: protocol.ToRunner) -> None:
        self._post(message)
        pipe = self._process.stdin
        if pipe is not None and self.alive:
            try:
                await pipe.drain()
            except ConnectionError:
                await asyncio.shield(self._exit_task)
        if self.died is not None:
            raise self.died

    def _receive(self, data: bytes) -> None:
        """Handle bytes of the runner's stdout."""
        if self._unreadable is not None:
            return
        if self._late is not None:
            self._late += data
            return
        before, self.last_message_at = self.last_message_at, time.monotonic()
        try:
            bodies = self._frames.feed(data)
            for body in bodies:
                self._dispatch(protocol.decode_from_runner(body))
        except Exception as error:  # noqa: BLE001 - after any error this child cannot be trusted
            self._unreadable = f"the runner sent an unreadable frame: {error}"
            self.kill()
            return
        if len(bodies) > 1 or self.last_message_at - before < GATHER_S:
            self._late = b""
            self.loop.call_later(GATHER_S, self._take_late)

    def _take_late(self) -> None:
        """Handle what arrived within GATHER_S after other frames."""
        data, self._late = self._late, None
        if data:
            self._receive(data)

    async def _until_exit(self) -> None:
        """Wait for the end of stdout, then report the exit."""
        output = self._process.stdout
        assert output is not None
        with contextlib.suppress(ConnectionError):
            await output.read()
        self._take_late()
        await self._on_exit(self._unreadable)

    def _dispatch(self, message: protocol.FromRunner) -> None:
        if isinstance(message, protocol.Events):
            self._deliver(message)
        elif isinstance(message, protocol.Fault):
            self._on_fault(message)
        elif isinstance(message, protocol.ContextWanted):
            self.on_context_wanted(message)
        elif isinstance(message, protocol.RowsRecorded):
            self.on_rows_recorded(message)
        elif isinstance(message, protocol.Heartbeat):
            self._watchdog.on_heartbeat(message.step_s)
            self.prefill_depth = message.depth
        elif isinstance(message, protocol.Hello):
            self._watchdog.on_heartbeat(0.0)
            _resolve(self._hello, message)
        elif isinstance(message, protocol.Loaded):
            _resolve(self._loaded, message.facts)
        elif isinstance(message, protocol.Progress | protocol.Saving):
            self._report_progress(message)
        else:
            reply = self._replies.get(message.id)
            if reply is not None:
                _resolve(reply, message)

    def _deliver(self, events: protocol.Events) -> None:
        for request_id, event in events.items:
            mailbox = self._mailboxes.get(request_id)
            if mailbox is not None:
                mailbox.put(event)

    def _report_progress(self, progress: protocol.Progress | protocol.Saving) -> None:
        if isinstance(progress, protocol.Saving):
            if progress.left_bytes and not self._watchdog.saving.left_bytes:
                log.info("storing prefixes path=%s bytes=%d", self._path, progress.left_bytes)
            self._watchdog.saving = progress
            return
        self._phase = progress.phase
        try:
            self._on_progress(progress.phase, progress.fraction)
        except TesseraError as error:  # the caller cancels the load; the child itself is fine
            if not self._loaded.done():
                self._loaded.set_exception(error)

    def _give_up(self, reason: Reason) -> None:
        self._stuck = because("runner_stuck", why=reason)
        self.kill()

    def _on_fault(self, fault: protocol.Fault) -> None:
        error = fault_to_error(fault, self._path)
        if fault.id is None:
            if not self._loaded.done():
                self._loaded.set_exception(error)
            return
        mailbox = self._mailboxes.get(fault.id)
        if mailbox is not None:
            mailbox.put(error)
        reply = self._replies.get(fault.id)
        if reply is not None and not reply.done():
            reply.set_exception(error)

    async def _on_exit(self, reason: str | None) -> None:
        """The pipe closed: get the exit code and fail all pending requests."""
        code = await self._process.wait()
        await asyncio.wait([self._stderr_task], timeout=0.2)
        last = next((line for line in reversed(self._stderr) if line.strip()), "")
        self._watchdog.stop()
        cause: Reason | str = reason or self._stuck or exit_reason(code, stopping=self._stopping, last_line=last)
        self.died = RunnerDied(code, cause, self.stderr_tail[-20:])
        for mailbox in self._mailboxes.values():
            mailbox.put(self.died)
        if self._hello.done() and not self._loaded.done() and getattr(cause, "kind", "") == "process_ended":
            blamed = file_to_blame(code, self.stderr_tail, weights_read=self._phase not in {"", "weights"})
            if blamed is not None:
                self._loaded.set_exception(FileRefused(self._path, blamed))
        waiting: list[asyncio.Future[Any]] = [self._hello, self._loaded, *self._replies.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(self.died)

    async def _read_stderr(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line longer than the buffer
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self._stderr.append(text)
            self.buffers.read(text)


def _resolve(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _retrieve(future: "asyncio.Future[Any]") -> None:
    """Mark an exception as retrieved; waiting callers get it anyway."""
    if not future.cancelled():
        future.exception()


class Mailbox:
    """Queue of one request's events, from the reader to its consumer."""

    def __init__(self) -> None:
        self.items: deque[Event | TesseraError] = deque()
        self._wake: asyncio.Future[None] | None = None

    def put(self, item: Event | TesseraError) -> None:
        """Add an event and wake the consumer."""
        self.items.append(item)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def get(self) -> Event | TesseraError:
        """Wait for the next event and return it."""
        while not self.items:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self.items.popleft()


# Command and environment of a runner process.

# Requests 2 MiB pages from Linux for large allocations of the C library (glibc 2.35 and later; others ignore it).
# All weights are read for every token, and with small pages the page tables are read too. Measured: log-archive.md,
# engine.
HUGE_PAGES: Final = "glibc.malloc.hugetlb=1"


def runner_command(engine: str) -> tuple[str, ...]:
    """Return the command that starts a runner. Ryzen AI has its own Python, which TESSERA_ONNX_PYTHON names."""
    command = child_command("engine.runner.main", engine, str(os.getpid()))
    python = os.environ.get("TESSERA_ONNX_PYTHON")
    return (python, *command[1:]) if engine == "onnx" and python else command


def runner_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the child's environment, without secrets.

    A model file can be hostile and is parsed in this process, so the process gets no tokens or keys.
    """
    env = without_secrets()
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))
    env["PYTHONUNBUFFERED"] = "1"
    # the last entry has priority
    env["GLIBC_TUNABLES"] = ":".join(filter(None, (HUGE_PAGES, env.get("GLIBC_TUNABLES"))))
    if extra:
        env.update(extra)
    return env


# The engine of all but a few models.
USUAL_ENGINE: Final = "llama"
# A runner that is not used for this long is ended to free its memory: the server may have started at login.
UNUSED_S: Final = 60.0

Starter = Callable[[str, str], Awaitable[RunnerProcess]]


class SpareRunner:
    """Holds at most one runner without a model. A pool starts runners with `take`. Use from one event loop."""

    def __init__(self, start: Starter = RunnerProcess.start, unused_s: float = UNUSED_S) -> None:
        self._start = start
        self._unused_s = unused_s
        self._starting: asyncio.Future[RunnerProcess] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._version: str | None = None

    def prepare(self) -> None:
        """Start it in the background. It is only for a server's first load; later loads start their own."""
        self._version = chosen_version()
        self._starting = asyncio.ensure_future(self._start(USUAL_ENGINE, ""))
        self._starting.add_done_callback(_seen)
        self._timer = asyncio.get_running_loop().call_later(self._unused_s, self.end)

    async def take(self, engine: str, path: str) -> RunnerProcess:
        """Return the waiting runner if it can run this engine and version, else a new one. Raises: RunnerDied."""
        if (
            engine != USUAL_ENGINE or chosen_version(path) != self._version
        ):  # it has loaded that version's libraries
            self.end()
        spare = self._starting
        if spare is None:
            return await self._start(engine, path)
        try:
            runner = await asyncio.shield(spare)
        except TesseraError:
            runner = None
        if self._starting is not spare:  # another load was faster
            return await self._start(engine, path)
        self._forget()
        return runner if runner is not None and runner.alive else await self._start(engine, path)

    def end(self) -> None:
        """End it, unless it was taken."""
        spare = self._starting
        self._forget()
        if spare is not None:
            spare.add_done_callback(_kill)

    def _forget(self) -> None:
        self._starting = None
        if self._timer is not None:
            self._timer.cancel()


def _seen(spare: "asyncio.Future[RunnerProcess]") -> None:
    """Mark a failed start as seen: the next load starts its own runner and reports its error."""
    if not spare.cancelled():
        spare.exception()


def _kill(spare: "asyncio.Future[RunnerProcess]") -> None:
    """Kill the runner; it has no model and nothing to save."""
    if not spare.cancelled() and spare.exception() is None:
        spare.result().kill()
