"""`tessera cluster`: models on several machines through Ray Serve, behind one Tessera server."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Final

import click

from app.cli.connection import connected
from app.cli.console import console, table
from app.cli.echo import InputRefused, NotPossibleHere, echo, print_json, required_secret
from app.cli.quantize_options import Size
from app.cli.settings_defaults import TokenCount
from app.cluster.types import DOOR_PORT, RAY_PORT, ClusterFile, Deployed, cluster_file
from app.format import size
from devices.child_command import interpreter
from devices.install_hints import add_part
from engine.api.upstreams import UpstreamRequest, UpstreamRule
from engine.services import user_paths

UPSTREAM: Final = "cluster"
# Memory of a replica in addition to its runner: its server and Ray's worker. An estimate, not measured.
BESIDE_BYTES: Final = 320 << 20
START_S: Final = 180.0
# Fix these ports. Otherwise a node waits up to 15 s for each agent to report its port, then aborts.
AGENTS: Final = (
    "--metrics-export-port",
    "--dashboard-agent-grpc-port",
    "--dashboard-agent-listen-port",
    "--runtime-env-agent-port",
)


@click.group(help="Serve models from several machines with Ray Serve (needs the extra cluster).")
def command() -> None:
    """Ray itself is imported by nothing else."""
    _need_ray()


def _need_ray() -> None:
    if find_spec("ray") is None:
        raise NotPossibleHere(f"Ray is not installed here. To install it: {add_part('cluster')}")


@command.command("up")
@click.option("--host", default="127.0.0.1", show_default=True, help="This computer's address for the others.")
@click.option("--port", default=RAY_PORT, show_default=True, type=click.IntRange(1, 65535), help="Ray's port.")
@click.option(
    "--door",
    default=DOOR_PORT,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="Port of the gateway, on loopback.",
)
@click.option("--memory", type=Size(), help="For models on this computer; default: the memory that is free now.")
def up(host: str, port: int, door: int, memory: int | None) -> None:
    """Start a cluster with this computer as its head, until Ctrl+C or `tessera cluster down`."""
    store = cluster_file(user_paths())
    cluster = ClusterFile(
        address=f"{host}:{port}", token=secrets.token_hex(32), door=f"http://127.0.0.1:{door}", pid=os.getpid()
    )
    store.put(cluster)
    os.environ.update(cluster.environment())
    ray = _ray("--head", f"--node-ip-address={host}", f"--port={port}", "--include-dashboard=false", memory=memory)
    try:
        _wait(ray, cluster)
        _print_server(cluster)
        echo("On the other computers, with the same version of Tessera and the models downloaded:")
        echo(f"  tessera cluster join {cluster.address}")
        echo(f"They ask once for this token: {cluster.token}")
        if host != "127.0.0.1":
            echo("Ray encrypts nothing: keep it to a network of your own, or a VPN.")
        _serve(cluster, door)
    finally:
        _end(ray)
        store.put(ClusterFile())


@command.command("join")
@click.argument("address")
@click.option("--memory", type=Size(), help="For models on this computer; default: the memory that is free now.")
def join(address: str, memory: int | None) -> None:
    """Add this computer to a cluster until Ctrl+C. ADDRESS is HOST:PORT, as `cluster up` printed it."""
    store = cluster_file(user_paths())
    cluster = store.get()
    if cluster.address != address or not cluster.token:
        cluster = ClusterFile(address=address, token=required_secret("Token"))
    os.environ.update(cluster.environment())
    ray = _ray(f"--address={address}", memory=memory)
    store.put(cluster)
    try:
        echo("Part of the cluster until Ctrl+C.")
        with contextlib.suppress(KeyboardInterrupt):
            ray.wait()
    finally:
        _end(ray)
    if ray.returncode not in {0, -signal.SIGTERM, 128 + signal.SIGTERM}:
        store.put(ClusterFile())  # ask for the token again at the next attempt
        raise NotPossibleHere(f"Ray ended ({ray.returncode}): is {address} the head, and the token right?")


@command.command("deploy")
@click.argument("model")
@click.option(
    "--most",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Maximum number of replicas, one per node.",
)
@click.option("--least", default=1, show_default=True, type=click.IntRange(1, 1000))
@click.option("--parallel", default=4, show_default=True, type=click.IntRange(1, 128))
@click.option("--ctx", default=None, type=TokenCount(16, 1 << 24))
@click.option(
    "--affinity/--no-affinity",
    default=True,
    show_default=True,
    help="Send a conversation to the node that caches its beginning.",
)
def deploy(model: str, most: int, least: int, parallel: int, ctx: int | None, *, affinity: bool) -> None:
    """Deploy a model, or replace its deployment replica by replica. Long queues start more replicas."""
    cluster = require_cluster()
    with connected() as client:
        entry = client.model(model)
        need = client.placement(entry.id).placement.need
    predicted = sum(part.num_bytes for part in need.parts) if need is not None else entry.size_bytes
    deployment = Deployed(
        model=entry.id, num_bytes=entry.size_bytes, memory_bytes=predicted + BESIDE_BYTES, parallel=parallel,
        n_ctx=ctx, least=min(least, most), most=most, affinity=affinity,
    )  # fmt: skip
    echo(f"{entry.id}: {size(deployment.memory_bytes)} per replica, {deployment.least} to {most} of them.")
    from app.cluster import deploying

    deploying.connect(cluster)
    deploying.deploy(deployment)
    echo(f"It answers as {UPSTREAM}/{entry.id}.")


@command.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(*, as_json: bool) -> None:
    """List nodes and deployments."""
    cluster = require_cluster()
    from app.cluster import deploying

    deploying.connect(cluster)
    if as_json:
        print_json({"nodes": deploying.nodes(), "deployments": deploying.deployed()})
        return
    nodes = [(node["address"], size(node["total_bytes"]), size(node["free_bytes"])) for node in deploying.nodes()]
    models = []
    for name, row in deploying.deployed().items():
        replicas = ", ".join(f"{count} {state.lower()}" for state, count in row["replicas"].items())
        models.append((name, row["state"].lower(), replicas, row["reason"]))
    out = console()
    out.print(table(("node", "memory for models", "free"), nodes, cut="node"))
    out.print(table(("model", "state", "replicas", "reason"), models, cut="reason"))


@command.command("down")
@click.argument("model", required=False)
def down(model: str | None) -> None:
    """Stop one model, or the whole cluster."""
    cluster = require_cluster()
    from app.cluster import deploying

    deploying.connect(cluster)
    if model is not None:
        deploying.remove(model)
        echo(f"{model} is no longer in the cluster.")
        return
    deploying.shut_down()
    if cluster.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(cluster.pid, signal.SIGTERM)
    echo("The cluster is down; the other computers leave by themselves.")


def require_cluster() -> ClusterFile:
    """This computer's cluster; sets Ray's environment variables, token included.

    Raises: InputRefused, NotPossibleHere.
    """
    _need_ray()
    cluster = cluster_file(user_paths()).get()
    if not cluster.address:
        raise InputRefused("This computer belongs to no cluster: tessera cluster up, or join.")
    os.environ.update(cluster.environment())
    return cluster


def _ray(*arguments: str, memory: int | None) -> "subprocess.Popen[bytes]":
    """Start Ray's processes on this node; they end with the returned process."""
    memory_bytes = memory if memory is not None else _free_bytes()
    command = interpreter("-P", "-m", "ray.scripts.scripts", "start", "--block", f"--memory={memory_bytes}")
    agents = [f"{option}={port}" for option, port in zip(AGENTS, _free_ports(len(AGENTS)), strict=True)]
    return subprocess.Popen(
        [*command, *agents, "--disable-usage-stats", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def _free_bytes() -> int:
    with connected(here=True) as client:
        return client.ledger().available_bytes.get("cpu", 0)


def _wait(ray: "subprocess.Popen[bytes]", cluster: ClusterFile) -> None:
    from app.cluster import deploying

    until = time.monotonic() + START_S
    while True:
        try:
            deploying.connect(cluster)
        except (ConnectionError, RuntimeError) as error:
            if ray.poll() is not None or time.monotonic() > until:
                raise NotPossibleHere(f"Ray does not start: {error}") from error
            time.sleep(0.5)
        else:
            return


def _print_server(cluster: ClusterFile) -> None:
    """Add the cluster as an upstream of the running server, so that the server uses its models."""
    with connected(here=True) as client:
        client.put_upstream(UPSTREAM, UpstreamRequest(url=cluster.door, kind="tessera", key=cluster.token))
        client.put_upstream_rule(UpstreamRule(model=f"{UPSTREAM}/*", upstream=UPSTREAM))


def _serve(cluster: ClusterFile, port: int) -> None:
    import uvicorn

    from app.cluster.gateway import Door

    echo(f"Models that are deployed answer on your Tessera server as {UPSTREAM}/MODEL. Ends with Ctrl+C.")
    sys.stdout.flush()
    uvicorn.run(Door(cluster.token).app, host="127.0.0.1", port=port, log_level="warning")


def _end(ray: "subprocess.Popen[bytes]") -> None:
    ray.terminate()
    try:
        ray.wait(20)
    except subprocess.TimeoutExpired:
        ray.kill()
        ray.wait()
