"""Run the server in this process until it is told to stop."""

import ipaddress
import json
import logging
import os
import socket
import ssl
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from engine import quantizing
from engine.bench import work as measuring
from engine.bench.work import Workshop
from engine.dispatch.admission import LedgerAdmission
from engine.dispatch.placer import Placer
from engine.dispatch.types import NO_WISH, Wish
from engine.errors import EnvironmentFault, InputFault
from engine.jobs import JobRegistry
from engine.library import work
from engine.library.catalogue import Catalogue
from engine.paths import Paths, user_paths
from engine.pool import Pool
from engine.server.aliases import Aliases
from engine.server.app import create_app
from engine.server.auth import Access, new_token, remove_server_file, write_server_file
from engine.server.drafts import Drafts
from engine.server.keys import KeyStore
from engine.server.models import ServedModels
from engine.server.state import ServerState
from engine.server.utilization import Utilization

log = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7373


class PortTaken(EnvironmentFault):
    """Another program listens there; `holder` names it when the system tells."""

    code = "port_taken"

    def __init__(self, host: str, port: int, holder: str | None) -> None:
        by = f" by {holder}" if holder else ""
        super().__init__(f"Port {port} on {host} is in use{by}. Choose another: tessera serve --port {port + 1}")
        self.host = host
        self.port = port
        self.holder = holder


@dataclass(frozen=True)
class ServeOptions:
    """What `tessera serve` can set.

    `context` is the tokens a model is loaded with unless it was trained for less, `wish` how and where else. A
    `private` server belongs to the process that started it: it tells its address on standard output instead of
    to all of this user's programs. With a certificate only TLS is spoken, and this user's own programs start a
    server of their own beside it. A model is unloaded after `ttl_s` without a request (None: never).
    `lora` are (model, adapter file), loaded with that model and used by the requests that name them. `draft` names
    a model that guesses ahead for all others of its vocabulary.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    api_keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    context: int | None = None
    wish: Wish = NO_WISH
    private: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    ttl_s: float | None = 3600.0
    max_models: int | None = None
    lora: tuple[tuple[str, str], ...] = ()
    draft: str | None = None
    paths: Paths = field(default_factory=user_paths)


def is_loopback(host: str) -> bool:
    """The address cannot be reached from another machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, taken before anything else so that a used port is noticed at once.

    Raises: PortTaken, InputFault: the address does not exist here.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if isinstance(error, socket.gaierror) or error.errno not in (48, 98, 10048):
            raise InputFault(f"{host}:{port} cannot be bound: {error.strerror or error}.", "host") from None
        raise PortTaken(host, port, _holder(port)) from None
    return listener


def _holder(port: int) -> str | None:
    import psutil  # noqa: PLC0415 - only when a port is taken

    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.laddr if connection.status == psutil.CONN_LISTEN else None
            if listens and listens.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        return None
    return None


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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Publish the address after the sockets are served."""
        await super().startup(sockets)
        if self._private:
            sys.stdout.write(json.dumps({"url": self._url, "token": self._token}) + "\n")
            sys.stdout.flush()
            return
        if self._server_file is not None:
            write_server_file(self._server_file, self._url, self._token)
        log.info("serving pid=%d", os.getpid())
        sys.stderr.write(f"Tessera serves at {self._url}\n")
        sys.stderr.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take the address back first: uvicorn ends by raising the signal it caught, and nothing runs after it."""
        if self._server_file is not None:
            remove_server_file(self._server_file)
        await super().shutdown(sockets)


def check_tls(cert: Path | None, key: Path | None) -> dict[str, Any]:
    """Uvicorn's settings for a certificate and its key; empty without one.

    Raises: InputFault: one of the two is missing, unreadable, or they do not belong together.
    """
    if cert is None and key is None:
        return {}
    if cert is None or key is None:
        raise InputFault("--tls-cert and --tls-key belong together.", "tls_cert")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise InputFault(f"{cert} and {key} are no certificate and its key: {error}.", "tls_cert") from None
    return {"ssl_certfile": cert, "ssl_keyfile": key}


def serve(options: ServeOptions) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises: PortTaken; InputFault: a public address without an API key.
    """
    keys = KeyStore(options.paths.config / "api-keys.json")
    tls = check_tls(options.tls_cert, options.tls_key)
    if not is_loopback(options.host) and not options.api_keys and not keys.all():
        raise InputFault(
            f"{options.host} can be reached from other machines, so an API key is required: "
            "tessera keys add NAME, or tessera serve --api-key KEY",
            "host",
        )
    listener = bind(options.host, options.port)
    port = listener.getsockname()[1]
    token = new_token()
    aliases = Aliases(options.paths.config / "aliases.json")
    placer = Placer(options.paths)
    open_catalogue = partial(Catalogue, options.paths)
    place = partial(placer.choose_settings, wish=options.wish)
    drafts = Drafts(options.paths.config / "drafts.json", options.draft)
    models = ServedModels(
        open_catalogue, options.context, aliases, options.paths.cache, place, options.lora, drafts
    )
    pool = Pool(models, admission=LedgerAdmission(placer), ttl_s=options.ttl_s, max_models=options.max_models)
    jobs = JobRegistry(None if options.private else options.paths.state / "jobs.json")
    work.register(jobs, lambda: Catalogue(options.paths, scan=False))
    quantizing.register(jobs, lambda: Catalogue(options.paths, scan=False))
    workshop = Workshop(options.paths, placer, lambda: Catalogue(options.paths, scan=False))
    measuring.register(jobs, workshop)
    access = Access(token, options.api_keys, keys)
    utilization = Utilization(placer.machine_now)
    state = ServerState(
        models=models,
        pool=pool,
        access=access,
        jobs=jobs,
        placer=placer,
        workshop=workshop,
        utilization=utilization,
    )
    state.metrics.registry.register(utilization)
    public = () if is_loopback(options.host) else (options.host, socket.gethostname())
    app = create_app(state, hosts=(*options.hosts, *public), origins=options.origins)
    config = uvicorn.Config(
        app,
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
    server = _Server(
        config, server_file, f"{'https' if tls else 'http'}://{host}:{port}", token, private=options.private
    )
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
