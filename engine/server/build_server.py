"""Put a server together: its models, routes, and uvicorn around them."""

import asyncio
import gc
import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn

from engine.core.startup_timing import Phases
from engine.jobs.jobs import JobRegistry
from engine.server.app import create_app
from engine.server.auth import Access, remove_server_file, running_server_url, write_server_file
from engine.server.connections import connection_class, connection_limit, quieten
from engine.server.event_loop_watchdog import LoopWatch
from engine.server.log_rate_limit import Sparing, bound_log
from engine.server.model_side import ModelSide
from engine.server.options import BACKLOG, ServeOptions
from engine.server.origin_check import Callers
from engine.server.state import ServerState
from engine.server.utilization import Utilization

log = logging.getLogger(__name__)
_LATE_S: Final = 0.1


class _Server(uvicorn.Server):
    """uvicorn that tells where it is once it takes requests, and takes that back at the end."""

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
        """Publish the address after the sockets are served."""
        loop = asyncio.get_running_loop()
        quieten(loop)
        for handler in logging.getLogger().handlers:
            handler.addFilter(Sparing())
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
        """Publish where this server is, unless another of this user's is published there and still runs."""
        other = running_server_url(server_file, self._url)
        try:
            if other is None:
                write_server_file(server_file, self._url, self._token)
                return
            reason = f"{other} serves this user already: terminal and window use that one, not this."
        except OSError as error:
            reason = f"{server_file} cannot be written ({error.strerror}): terminal and window will not find it."
        log.warning("not published: %s", reason)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take the address back first: uvicorn ends by raising the signal it caught, and nothing runs after it."""
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
        """Close connections just being accepted: uvicorn does not know of them, and would wait for them."""
        while True:
            await asyncio.sleep(_LATE_S)
            for connection in list(self.server_state.connections):
                connection.shutdown()


def assemble(
    options: ServeOptions, port: int, tls: dict[str, Any], access: Access, side: ModelSide, start: Phases
) -> uvicorn.Server:
    """The server that `options` ask for, over its models, ready to serve a listening socket at `port`.

    `start` gets the phases until the first token.
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
        named_tasks=options.named_tasks,
    )
    state.metrics.registry.register(utilization)

    def before_late() -> None:
        from engine.server.job_kinds import register  # noqa: PLC0415 - only routes that come late start jobs

        state.bench_service = register(jobs, options.paths, side.placer, side.admission, options.named_tasks)

    public = (options.host, socket.gethostname()) if access.public else ()
    callers = Callers(
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
