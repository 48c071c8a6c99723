"""Runs the server in this process until it is stopped."""

import asyncio
import faulthandler
import gc
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devices.process_memory import few_heaps, short_turns
from engine.core.errors import EnvironmentFault, InputFault
from engine.core.keys import KeyStore
from engine.core.program_keys import ProgramKeys
from engine.core.startup_timing import StartupTimer
from engine.runner.process import RunnerProcess, SpareRunner
from engine.server.auth import Access, new_token
from engine.server.log_rate_limit import ignored_in_a_line
from engine.server.options import BACKLOG, ServeOptions, is_loopback

if TYPE_CHECKING:
    import uvicorn

    from engine.server.first_model import FirstModel
    from engine.server.model_side import ModelSide


class PortTaken(EnvironmentFault):
    """Another program uses the port; `holder` is its name if known."""

    code = "port_taken"

    def __init__(self, host: str, port: int, holder: str | None) -> None:
        by = f" by {holder}" if holder else ""
        super().__init__(f"Port {port} on {host} is in use{by}. Choose another: tessera serve --port {port + 1}")
        self.host = host
        self.port = port
        self.holder = holder


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Bound before anything else, so that a used port is reported immediately.

    Raises: PortTaken; InputFault: the address does not exist on this computer.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; otherwise chunks are delayed by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if isinstance(error, socket.gaierror) or error.errno not in (48, 98, 10048):
            raise InputFault(f"{host}:{port} cannot be bound: {error.strerror or error}.", "host") from None
        raise PortTaken(host, port, _holder(port)) from None
    return listener


def _holder(port: int) -> str | None:
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.laddr if connection.status == psutil.CONN_LISTEN else None
            if listens and listens.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        return None
    return None


def check_tls(cert: Path | None, key: Path | None) -> dict[str, Any]:
    """TLS settings of uvicorn for a certificate and its key; empty without them.

    Raises: InputFault: one of the two is missing or unreadable, or they do not match.
    """
    if cert is None and key is None:
        return {}
    if cert is None or key is None:
        raise InputFault("--tls-cert and --tls-key belong together.", "tls_cert")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise InputFault(f"{cert} and {key} are not a certificate and its key: {error}.", "tls_cert") from None
    return {"ssl_certfile": cert, "ssl_keyfile": key}


def serve(options: ServeOptions) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises: PortTaken; InputFault: a public address without an API key.
    """
    faulthandler.enable(2)  # a crash in native code writes its cause and its threads to the log
    gc.disable()  # nothing to collect during the imports; enabled again when the server is ready
    few_heaps()
    short_turns()
    ignored_in_a_line()
    keys = KeyStore(options.paths.config / "api-keys.json")
    tls = check_tls(options.tls_cert, options.tls_key)
    if not is_loopback(options.host):
        _require_key(options, keys)
    listener = bind(options.host, options.port)
    start = StartupTimer(from_start=True)
    start.done("program")
    try:
        if is_public(options.host, listener):
            _require_key(options, keys)
        asyncio.run(_serve(options, listener, tls, keys, start))
    finally:
        listener.close()


def is_public(host: str, listener: socket.socket) -> bool:
    """Whether other machines may reach the server, by the given name or by the address it resolves to."""
    return not (is_loopback(host) and is_loopback(str(listener.getsockname()[0])))


def _require_key(options: ServeOptions, keys: KeyStore) -> None:
    if not any(options.api_keys) and not keys.all():
        raise InputFault(
            f"{options.host} can be reached from other machines, so an API key is required: "
            "tessera keys add NAME, or tessera serve --api-key KEY",
            "host",
        )


async def _serve(
    options: ServeOptions, listener: socket.socket, tls: dict[str, Any], keys: KeyStore, start: StartupTimer
) -> None:
    spare = SpareRunner()
    if options.model is not None or not options.private:  # a private server without a model only runs jobs
        spare.prepare()
        await asyncio.sleep(0)  # let the child start and import in parallel
    first = None
    try:
        from engine.server.model_side import open_model_side

        side = open_model_side(options, spare)
        start.done("models")
        first = _first_model(side, options.model) if options.model is not None else None
        if first is not None:  # two threads of one interpreter would delay both
            await first.with_runner()
        # In a thread, because the first model loads meanwhile.
        assemble = await asyncio.to_thread(_assembler)
        if first is not None and not options.private:
            await first.found
        public = is_public(options.host, listener)
        programs = ProgramKeys(options.paths.config / "program-keys.json")
        access = Access(new_token(), options.api_keys, keys, programs, public=public)
        server = assemble(options, listener.getsockname()[1], tls, access, side, start)
        await server.serve(sockets=[listener])
    finally:
        if first is not None:
            await first.end()
        spare.end()
        await RunnerProcess.end_all()


def _first_model(side: "ModelSide", name: str) -> "FirstModel":
    from engine.server.first_model import FirstModel

    return FirstModel(side.pool, side.models.entry, name)


def _assembler() -> "Callable[..., uvicorn.Server]":
    from engine.server.build_server import assemble

    return assemble
