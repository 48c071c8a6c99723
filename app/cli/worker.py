"""`tessera worker`: provides this computer's memory and CPUs for a model that another computer runs."""

import asyncio
import contextlib
import getpass
import os
import socket
import sys

import click

from app.cli.echo import NotPossibleHere, echo
from app.cli.quantize_options import Size
from app.format import size

PORT = 50052


@click.command(help="Offer this computer's GPU, or CPU, to a model on another computer (through an SSH tunnel).")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535))
@click.option("--threads", default=os.cpu_count() or 1, show_default="all", type=click.IntRange(1, 512))
@click.option("--memory", type=Size(), help="Maximum main memory to offer, such as 8G.")
def command(port: int, threads: int, memory: int | None) -> None:
    """Listens on loopback only, so only users with an SSH account here can reach it."""
    from app.worker.facts import FactsOf
    from app.worker.serve import LOOPBACK, Worker

    with socket.socket() as probe:
        if sys.platform != "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            why = f"Port {port} cannot be used ({error.strerror}); choose another: --port"
            raise NotPossibleHere(why) from error
    facts = FactsOf(socket.gethostname(), memory)
    for device in facts.now().devices:
        echo(f"{device.name}: {device.description}, {size(device.free_bytes)} free")
    echo(f"A worker on {LOOPBACK}:{port}: only this computer can reach it. Stop it with Ctrl+C.")
    there = f"--port {port}" if port != PORT else ""
    echo("On the computer that has the model, with the same version of Tessera:")
    echo(f"  tessera remote add NAME {getpass.getuser()}@{socket.gethostname()} {there}".rstrip())
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Worker(facts, threads).serve(port))
