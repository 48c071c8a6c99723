"""`tessera remote`: remote hosts whose workers hold layers of a model, through SSH tunnels."""

import getpass

import click

from app.cli.connection import connected
from app.cli.console import console, table
from app.cli.echo import echo, print_json
from app.client import ApiError
from app.format import size
from engine.api.remotes import RemoteRequest, RemoteRow


@click.group(help="Spread one model over this computer and others (each runs `tessera worker`).")
def command() -> None:
    """Connections use SSH with the user's own keys."""


@command.command("add")
@click.argument("name")
@click.argument("where", metavar="[USER@]HOST")
@click.option("--ssh-port", default=22, show_default=True, type=click.IntRange(1, 65535))
@click.option("--port", default=50052, show_default=True, type=click.IntRange(1, 65535), help="Port of the worker.")
@click.option("--identity", default="", help="File of a private key; default: the SSH agent and your usual keys.")
@click.option("--host-key", default="", help="The host's known fingerprint (SHA256:…).")
@click.option(
    "--use",
    type=click.Choice(["unfit", "faster", "pinned"], case_sensitive=False),
    default="unfit",
    show_default=True,
    help="unfit: models that do not fit here; faster: also if it is faster; pinned: only models pinned to it.",
)
def add(name: str, where: str, ssh_port: int, port: int, identity: str, host_key: str, use: str) -> None:
    """Add a computer, such as: tessera remote add desk you@desk-pc."""
    user, _, host = where.rpartition("@")
    request = RemoteRequest(
        host=host, user=user or getpass.getuser(), port=ssh_port, worker_port=port, identity=identity,
        host_key=host_key, use=use,  # type: ignore[arg-type]  # click checks the choice
    )  # fmt: skip
    with connected() as client:
        try:
            row = client.put_remote(name, request)
        except ApiError as error:
            if error.code != "unknown_host_key":
                raise
            echo(str(error))
            fingerprint = click.prompt(
                "Its fingerprint, to accept it (nothing: not)", default="", show_default=False
            )
            if not fingerprint.strip():
                echo("Nothing was added.", err=True)
                raise click.Abort from None
            row = client.put_remote(name, _with_key(request, fingerprint.strip()))
    _print_row(row)
    words = {
        "unfit": f"Layers of a model go to {name} when it does not fit here.",
        "faster": f"Layers of a model go to {name} when it does not fit here, or would be faster.",
        "pinned": f"Layers go to {name} only for models pinned to it on their card in the window.",
    }
    echo(words[row.use])


def _with_key(request: RemoteRequest, fingerprint: str) -> RemoteRequest:
    import msgspec

    return msgspec.structs.replace(request, host_key=fingerprint)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_remotes(*, as_json: bool) -> None:
    """List the computers and their last known state."""
    with connected() as client:
        remotes = client.remotes()
    if as_json:
        print_json(remotes)
        return
    if not remotes.remotes:
        echo("There are no remotes. On the other computer: tessera worker. Here: tessera remote add NAME USER@HOST")
        return
    rows = []
    for row in remotes.remotes:
        devices = ", ".join(f"{d.description} ({size(d.free_bytes)} free)" for d in row.devices)
        address = f"{row.user}@{row.host}:{row.port}"
        rows.append((row.name, address, row.state, devices, _way(row), row.use, ", ".join(row.models)))
    heads = ("name", "address", "state", "devices", "connection", "used", "models")
    console().print(table(heads, rows, cut="devices"))
    for row in remotes.remotes:
        if row.reason:
            echo(f"{row.name}: {row.reason}")


@command.command("check")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(name: str, *, as_json: bool) -> None:
    """Check for a worker with the same kernels, and measure the connection to it."""
    with connected() as client:
        row = client.check_remote(name)
    print_json(row) if as_json else _print_row(row)
    if row.state != "ok":
        raise click.ClickException(f"{name} cannot be used: {row.reason}")


@command.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a computer and its host key."""
    with connected() as client:
        client.remove_remote(name)
    echo(f"{name} was removed.")


def _print_row(row: RemoteRow) -> None:
    echo(f"{row.name}: {row.state}" + (f", {row.reason}" if row.reason else f", {_way(row)}"))
    for device in row.devices:
        echo(f"  {device.description}: {size(device.free_bytes)} of {size(device.total_bytes)} free")


def _way(row: RemoteRow) -> str:
    if not row.rtt_ms:
        return "not measured"
    return f"{row.rtt_ms:.1f} ms, {row.up_bytes_s / 1e6:.0f} MB/s there, {row.down_bytes_s / 1e6:.0f} MB/s back"
