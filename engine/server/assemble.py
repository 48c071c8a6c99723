"""Put a server together: stores, placement, pool, routes, and uvicorn around them."""

import asyncio
import json
import logging
import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from engine.dispatch.memory_admission import MemoryAdmission
from engine.dispatch.placer import Placer
from engine.dispatch.resources import open_resources
from engine.jobs import JobRegistry
from engine.library.catalogue import Catalogue
from engine.loaded_model import REMOTE, Runner
from engine.pool import Pool
from engine.runner.spare import SpareRunner
from engine.server.aliases import Aliases
from engine.server.app import create_app
from engine.server.auth import Access, new_token, remove_server_file, running_server_url, write_server_file
from engine.server.connections import connection_class, connection_limit, quieten
from engine.server.drafts import Drafts
from engine.server.engine_args import EngineArgsStore
from engine.server.keys import KeyStore
from engine.server.load_wishes import LoadWishes
from engine.server.log_bounds import Sparing, keep_short
from engine.server.models import ServedModels
from engine.server.run import BACKLOG, ServeOptions, is_loopback
from engine.server.sampling_wishes import SamplingWishes
from engine.server.state import ServerState
from engine.server.strangers import Callers
from engine.server.utilization import Utilization
from engine.upstreams.book import UpstreamBook
from engine.upstreams.links import UpstreamLinks

log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """uvicorn that tells where it is once it takes requests, and takes that back at the end."""

    def __init__(
        self, config: uvicorn.Config, server_file: Path | None, url: str, token: str, *, private: bool
    ) -> None:
        super().__init__(config)
        self._private = private
        self._server_file = server_file
        self._url = url
        self._token = token
        self._log_keeper: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Publish the address after the sockets are served."""
        loop = asyncio.get_running_loop()
        quieten(loop)
        for handler in logging.getLogger().handlers:
            handler.addFilter(Sparing())
        self._log_keeper = loop.create_task(keep_short())
        await super().startup(sockets)
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
        """Tell where this server is, unless another of this user's is told there and still runs."""
        other = running_server_url(server_file, self._url)
        try:
            if other is None:
                write_server_file(server_file, self._url, self._token)
                return
            said = f"{other} serves this user already: terminal and window use that one, not this."
        except OSError as error:
            said = f"{server_file} cannot be written ({error.strerror}): terminal and window will not find it."
        log.warning("not published: %s", said)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take the address back first: uvicorn ends by raising the signal it caught, and nothing runs after it."""
        if self._log_keeper is not None:
            self._log_keeper.cancel()
        if self._server_file is not None:
            remove_server_file(self._server_file)
        await super().shutdown(sockets)


def assemble(
    options: ServeOptions, port: int, tls: dict[str, Any], keys: KeyStore, spare: SpareRunner
) -> uvicorn.Server:
    """The server that `options` ask for, ready to serve a listening socket at `port`."""
    token = new_token()
    aliases = Aliases(options.paths.config / "aliases.json")
    resources = open_resources(options.paths)
    placer = Placer(resources)
    admission = MemoryAdmission(placer)
    open_catalogue = partial(Catalogue, options.paths)
    drafts = Drafts(options.paths.config / "drafts.json", options.draft)
    wishes = SamplingWishes(options.paths.config / "sampling.json")
    links = UpstreamLinks(UpstreamBook(options.paths.config))
    models = ServedModels(
        open_catalogue,
        options.context,
        aliases,
        options.paths.cache,
        placer.choose,
        options.wish,
        options.lora,
        drafts,
        wishes,
        LoadWishes(options.paths.config / "load.json"),
        EngineArgsStore(options.paths.config / "engine_args.json"),
        links.book,
    )

    async def start(engine: str, path: str) -> Runner:
        return links.runner(path) if engine == REMOTE else await spare.take(engine, path)

    pool = Pool(models, start, admission, options.ttl_s, options.max_models, models)
    jobs = JobRegistry(None if options.private else options.paths.state / "jobs.json")
    access = Access(token, options.api_keys, keys)
    utilization = Utilization(placer.machine_now)
    state = ServerState(
        models=models,
        pool=pool,
        access=access,
        jobs=jobs,
        placer=placer,
        utilization=utilization,
        paths=options.paths,
        links=links,
    )
    state.metrics.registry.register(utilization)

    def before_late() -> None:
        from engine.server.job_kinds import register  # noqa: PLC0415 - only routes that come late start jobs

        state.workshop = register(jobs, options.paths, placer, admission)

    public = () if is_loopback(options.host) else (options.host, socket.gethostname())
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
    return _Server(config, server_file, url, token, private=options.private)
