"""`tessera worker`: this computer's memory and processors for a model that another computer runs."""

import os
import socket
import subprocess
import sys

import click

from app.cli.say import say
from devices.child_command import child_command

PORT = 50052


@click.command(help="Serve this computer's GPU, or processor, to a model on another one (through an SSH tunnel).")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535))
@click.option("--threads", default=os.cpu_count() or 1, show_default="all", type=click.IntRange(1, 512))
def command(port: int, threads: int) -> None:
    """Listens on loopback only: llama.cpp's RPC has neither keys nor encryption."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            why = f"Port {port} cannot be used ({error.strerror}); choose another: --port"
            raise click.ClickException(why) from error
    say(f"A worker on 127.0.0.1:{port}: nobody but this computer reaches it. It ends with Ctrl+C.")
    say("On the computer that has the model, with the same version of Tessera:")
    say(f"  ssh -N -L {port}:127.0.0.1:{port} YOU@{socket.gethostname()}")
    say(f"  tessera models engine-args MODEL rpc=127.0.0.1:{port}")
    sys.stdout.flush()
    argv = child_command("engine.runner.llama.rpc_worker", str(port), str(threads))
    if os.name == "posix":
        os.execv(argv[0], argv)  # noqa: S606 - becomes the worker, so that it ends with this command
    sys.exit(subprocess.call(argv))
