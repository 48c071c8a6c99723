"""Builds the server: models, routes and uvicorn."""

import asyncio
import contextlib
import faulthandler
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from devices.atomic_file import sweep_unfinished
from devices.kernel_packs.folder import packs_folder
from devices.llama_cpp_versions.folder import engines_folder
from devices.process_memory import give_back_freed
from engine.core.proof import proof
from engine.core.startup_timing import StartupTimer
from engine.jobs.job_types import ENDED
from engine.jobs.jobs import JobRegistry
from engine.runner.process import RunnerProcess
from engine.server.auth import (
    Access,
    remove_server_file,
    running_server_url,
    write_server_file,
)
from engine.server.connections import SleepingServer, connection_class, connection_limit, quieten
from engine.server.error_shape import HANDLERS
from engine.server.log_rate_limit import LogRateLimit, bound_log
from engine.server.middleware import NOBODY_ELSE, AccessCheck, ErrorMiddleware, Guard, RequestLog
from engine.server.model_side import ModelSide
from engine.server.openai import completions, models
from engine.server.openai import routes as chat
from engine.server.options import BACKLOG, ServeOptions
from engine.server.origin_check import AllowedOrigins
from engine.server.root import health, root
from engine.server.routing import EarlyRoute
from engine.server.state import ServerState, server_state
from engine.server.utilization import Utilization

# A server with a blocked event loop ends its process, so that it can be restarted.

# No task blocks the loop for a second, but a computer that swaps may take many times longer.
STILL_S: Final = 120
WATCH_S: Final = 10.0
# Least number of counts until the process ends.
COUNTS: Final = 6
# Time that the worker threads wait for each other, so that each start task gets its own thread.
TOGETHER_S: Final = 0.2
# EX_SOFTWARE of sysexits.h: service managers restart the program after it.
EXIT: Final = 70

log = logging.getLogger(__name__)


class LoopWatch:
    """A thread that counts the seconds since the event loop last ran.

    It counts its own seconds, so a stopped process or a sleeping computer is not mistaken for a blocked loop. Known
    cause of a blocked loop: Python waits forever for a new thread that has no memory to start.
    """

    def __init__(self, still_s: int = STILL_S) -> None:
        self._still_s = still_s
        self._every_s = min(WATCH_S, still_s / COUNTS)
        self._turns = 0
        self._over = threading.Event()

    async def watch(self) -> None:
        """Run until cancelled."""
        threading.Thread(target=self._count, name="loop-watch", daemon=True).start()
        try:
            while True:
                self._turns += 1
                await asyncio.sleep(self._every_s)
        finally:
            self._over.set()

    def _count(self) -> None:
        seen, still_s = -1, 0.0
        while not self._over.wait(self._every_s):
            turns = self._turns
            still_s = 0.0 if turns != seen else still_s + self._every_s
            seen = turns
            if still_s >= self._still_s:
                sys.stderr.write(
                    f"The event loop has not run for {still_s:.0f} s, so the server exits. Its threads:\n"
                )
                sys.stderr.flush()
                faulthandler.dump_traceback(all_threads=True)
                os._exit(EXIT)


async def start_threads() -> None:
    """Start the loop's worker threads now. Later, a thread without memory to start would block the loop forever."""
    count = min(32, (os.cpu_count() or 1) + 4)  # asyncio's default maximum
    together = threading.Barrier(count)

    def wait() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # some threads were busy, so they exist
            together.wait(TOGETHER_S)

    loop = asyncio.get_running_loop()
    try:
        waiting = [loop.run_in_executor(None, wait) for _ in range(count)]
    except RuntimeError as error:  # no memory for another thread: continue with the existing ones
        log.warning("%s", error)
    else:
        await asyncio.gather(*waiting)


# A program that starts a server sends a request immediately. Importing at the same time would slow it down.
AFTER_S: Final = 1.0
IDLE_LOOK_S: Final = 0.2
AGAIN_S: Final = 5.0


class LazyApp:
    """An application that `build` creates in a thread, at its first request or in `ready`."""

    def __init__(self, build: Callable[[], ASGIApp]) -> None:
        self._build = build
        self._app: ASGIApp | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await self.ready()
        await app(scope, receive, send)

    async def ready(self) -> ASGIApp:
        """The application; created now if necessary."""
        async with self._lock:
            if self._app is None:
                self._app = await asyncio.to_thread(self._build)
            return self._app

    async def ready_when_idle(self, busy: Callable[[], bool]) -> None:
        """Create the application as soon as no request is running."""
        await asyncio.sleep(AFTER_S)
        while busy():  # noqa: ASYNC110 - several independent events end it
            await asyncio.sleep(IDLE_LOOK_S)
        while True:
            try:
                await self.ready()
            except OSError as error:  # for example no file descriptor: retry later
                log.warning("the other routes are not there yet: %s", error)
                await asyncio.sleep(AGAIN_S)
            else:
                return


# The HTTP application: middleware, error responses, the early routes, then all other routes.

LOOK_S: Final = 5.0
# A body of 60 MB left 52 MB in the C library's heap permanently, 500,000 messages 20 MB more (log-archive.md,
# marathons).
WORTH_BYTES: Final = 16 << 20
# Memory of a request in progress cannot be returned yet. After this many checks without a gain, stop trying.
LOOKS: Final = 12


async def give_back_when_idle(busy: Callable[[], bool]) -> None:
    """Return freed memory to the system when the process has grown and no model is busy. Runs until cancelled."""
    least = looks = 0
    while True:
        try:
            before = psutil.Process().memory_info().rss
            if least and before - least >= WORTH_BYTES and not busy():
                await asyncio.to_thread(give_back_freed)
                after = psutil.Process().memory_info().rss
                if before - after >= WORTH_BYTES:
                    log.info("memory returned to the system: %d MB", (before - after) // 1_000_000)
                looks = looks + 1 if before - after < WORTH_BYTES else 0
                if after - least < WORTH_BYTES or looks >= LOOKS:
                    least, looks = after, 0
            else:
                least = min(before, least) or before
        except OSError as error:  # no file descriptor to read the memory use
            log.debug("memory could not be looked at: %s", error)
        await asyncio.sleep(LOOK_S)


# Measuring starts late, so that its imports do not slow down the first requests.
MEASURE_AFTER_S: Final = 60.0


def create_app(
    state: ServerState, callers: AllowedOrigins = NOBODY_ELSE, before_late: Callable[[], None] = lambda: None
) -> Starlette:
    """The application for `state`; closing it stops every runner.

    `before_late` is called once, in a thread, before the first route that is not early is served.
    """

    def build() -> ASGIApp:
        gc.disable()  # collection during the imports took 1/6 of their time and freed nothing
        try:
            from engine.server.all_routes import every_route

            before_late()
            return every_route(state)
        finally:
            gc.enable()

    late = LazyApp(build)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        state.loop = asyncio.get_running_loop()
        state.renderer.warm()
        if state.utilization is not None:
            state.utilization.start()
        preparation = asyncio.create_task(_make_ready(state, late))
        memory = asyncio.create_task(give_back_when_idle(lambda: state.pool.busy))
        attention = asyncio.create_task(_measure_attention(state))
        canary = asyncio.create_task(_watch_answers(state))
        yield
        for task in (canary, attention, memory, preparation):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if state.utilization is not None:
            await state.utilization.stop()
        await state.streams.close()
        await state.close_collections()
        await asyncio.to_thread(state.jobs.close)
        await state.pool.close()
        state.links.close()
        state.power.close()
        await state.remotes.close()
        await state.speech.close()
        state.renderer.close()
        state.checker.close()

    early = [
        EarlyRoute("/health", _health, methods=["GET"]),
        EarlyRoute("/", root, methods=["GET", "HEAD"]),
        *(route for module in (models, chat, completions) for route in module.router.plain()),
    ]
    app = Starlette(routes=early, exception_handlers=HANDLERS, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.router.default = late
    app.state.server = state
    app.add_middleware(AccessCheck, access=state.access)
    app.add_middleware(Guard, callers=callers)
    app.add_middleware(ErrorMiddleware)
    app.add_middleware(RequestLog, metrics=lambda: state.metrics, times=state.times, recent=state.recent)
    return app


def _sweep(state: ServerState) -> None:
    """Delete leftovers of killed imports, conversions, downloads, measurements and uploads."""
    from engine.server.openai.files import Files

    paths = state.paths
    for folder in (paths.models, paths.cache, paths.state, paths.config, packs_folder(), engines_folder()):
        for path in sweep_unfinished(folder):
            log.info("deleted unfinished %s", path)
    Files(state.paths).sweep()


async def _make_ready(state: ServerState, late: LazyApp) -> None:
    """When no request is running, prepare what later requests would otherwise wait for."""
    await late.ready_when_idle(lambda: state.pool.busy)
    await start_threads()
    await asyncio.to_thread(_sweep, state)
    try:
        state.checker.warm()
        if state.has_collections:
            await state.collection_service()
    except OSError as error:  # the first request for them retries
        log.warning("collections or grammars are not ready yet: %s", error)


async def _measure_attention(state: ServerState) -> None:
    await asyncio.sleep(MEASURE_AFTER_S)  # import the benchmark long after the first response
    from engine.server.idle_measuring import IdleMeasuring

    await IdleMeasuring(state).run()


async def _watch_answers(state: ServerState) -> None:
    if state.canary is not None:
        state.canary.waits = lambda: (
            state.models.overrides.mode == "quiet"
            or any(job.state not in {*ENDED, "paused"} for job in state.jobs.jobs())
        )
        await state.canary.run()


async def _health(request: Request) -> Response:
    """Health check. The user's programs use it to verify which server listens here: see `engine.core.proof`."""
    proven = proof(server_state(request).access.token, request.query_params.get("challenge", ""))
    return JSONResponse({**await health(), **({"proof": proven} if proven is not None else {})})


_LATE_S: Final = 0.1


class _Server(SleepingServer):
    """A uvicorn server that publishes its URL once it accepts requests and removes it at shutdown."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_file: Path | None,
        url: str,
        token: str,
        *,
        private: bool,
        end_following: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._end_following = end_following
        self._private = private
        self._server_file = server_file
        self._url = url
        self._token = token
        self._log_bounding: asyncio.Task[None] | None = None
        self._loop_watch: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        quieten(loop)
        for handler in logging.getLogger().handlers:
            handler.addFilter(LogRateLimit())
        self._log_bounding = loop.create_task(bound_log())
        await super().startup(sockets)
        self._loop_watch = loop.create_task(LoopWatch().watch())
        gc.freeze()
        gc.enable()
        if self._private:
            sys.stdout.write(json.dumps({"url": self._url, "token": self._token}) + "\n")
            sys.stdout.flush()
            return
        if self._server_file is not None:
            self._publish(self._server_file)
        log.info("serving pid=%d", os.getpid())
        sys.stderr.write(f"Tessera serves at {self._url}\n")
        sys.stderr.flush()

    def _publish(self, server_file: Path) -> None:
        """Publish this server's URL, unless another running server of this user is published there."""
        other = running_server_url(server_file, self._url)
        try:
            if other is None:
                write_server_file(server_file, self._url, self._token)
                return
            reason = f"{other} serves this user already: terminal and window use that one, not this."
        except OSError as error:
            reason = f"{server_file} cannot be written ({error.strerror}): terminal and window will not find it."
        log.warning("not published: %s", reason)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at the first signal; at a second Ctrl-C, do not wait for what the runners still store."""
        if self.should_exit and sig == signal.SIGINT:
            RunnerProcess.kill_all()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Remove the URL first: uvicorn ends by raising the signal it caught, and nothing runs after that."""
        for task in (self._log_bounding, self._loop_watch):
            if task is not None:
                task.cancel()
        if self._server_file is not None:
            remove_server_file(self._server_file)
        self._end_following()
        closing = asyncio.get_running_loop().create_task(self._close_late())
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()

    async def _close_late(self) -> None:
        """Close connections that are just being accepted. uvicorn does not know them and would wait for them."""
        while True:
            await asyncio.sleep(_LATE_S)
            for connection in list(self.server_state.connections):
                connection.shutdown()


def assemble(
    options: ServeOptions, port: int, tls: dict[str, Any], access: Access, side: ModelSide, start: StartupTimer
) -> uvicorn.Server:
    """Build the server for `options` and its models, ready to serve a listening socket at `port`.

    `start` records the phases until the first token.
    """
    jobs = JobRegistry(None if options.private else options.paths.state / "jobs.json")
    utilization = Utilization(side.placer.machine_now)
    state = ServerState(
        models=side.models,
        pool=side.pool,
        access=access,
        jobs=jobs,
        placer=side.placer,
        utilization=utilization,
        paths=options.paths,
        start=start,
        links=side.links,
        remotes=side.remotes,
        canary=side.canary,
        named_tasks=options.named_tasks,
        keep_models_folder=options.keep_models_folder or (lambda _: None),
    )

    def before_late() -> None:
        from engine.server.job_kinds import register, register_move

        state.bench_service = register(jobs, options.paths, side.placer, side.admission, options.named_tasks)
        register_move(state)

    public = (options.host, socket.gethostname()) if access.public else ()
    callers = AllowedOrigins(
        hosts=(*options.hosts, *public),
        origins=options.origins,
        containers=options.containers,
        apps=options.apps,
        local_pages=options.local_pages,
    )
    app = create_app(state, callers, before_late)
    config = uvicorn.Config(
        app,
        http=connection_class(connection_limit()),
        ws="none",
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        timeout_keep_alive=75,
        lifespan="on",
        **tls,
    )
    host = f"[{options.host}]" if ":" in options.host else options.host
    server_file = None if options.private or tls else options.paths.server_file
    url = f"{'https' if tls else 'http'}://{host}:{port}"
    start.done("routes")
    side.pool.hooks.first_token = partial(start.done, "first token")
    return _Server(
        config, server_file, url, access.token, private=options.private, end_following=jobs.end_following
    )
