"""`tessera upstreams`: other servers (vLLM, SGLang, llama-server, another Tessera) and rules that route to them."""

from typing import get_args

import click

from app.cli.connection import connected
from app.cli.console import console, table
from app.cli.echo import echo, print_json, required_secret
from app.format import counted
from engine.api.upstreams import Kind, UpstreamRequest, UpstreamRow, UpstreamRule

KINDS = get_args(Kind)


@click.group(help="Use models of other servers, only as your rules allow.")
def command() -> None:
    """Adding a server sends nothing there; a rule does."""


@command.command("add")
@click.argument("name")
@click.argument("url")
@click.option("--kind", type=click.Choice(KINDS, case_sensitive=False), default=None)
@click.option("--key", "ask_key", is_flag=True, help="Ask for a key; `tessera upstreams key` sets one later.")
@click.option("--use-all", is_flag=True, help="Also add the rule that lets its models be used by their full names.")
def add(name: str, url: str, kind: str | None, *, ask_key: bool, use_all: bool) -> None:
    """Add a server, such as: tessera upstreams add desk http://10.0.0.2:8000."""
    key = required_secret("Key") if ask_key else None
    with connected() as client:
        row = client.put_upstream(name, UpstreamRequest(url=url, kind=kind, key=key))  # type: ignore[arg-type]
        if use_all:
            client.put_upstream_rule(UpstreamRule(model=f"{name}/*", upstream=name))
    _print_row(row)
    if row.plain_text:
        echo("Not encrypted: others on the network can read what is sent. Use https or a tunnel.")
    if not use_all:
        echo(f"Nothing is sent there yet. To use its models: tessera upstreams route '{name}/*' {name}")


@command.command("key")
@click.argument("name")
@click.option("--remove", is_flag=True, help="Delete the key.")
def key(name: str, *, remove: bool) -> None:
    """Change the key for a server. The command asks for it, so that it is not in the shell's history."""
    new_key = None if remove else required_secret("Key")
    with connected() as client:
        _print_row(client.set_upstream_key(name, new_key))


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_upstreams(*, as_json: bool) -> None:
    """List servers, their models, and the rules."""
    with connected() as client:
        upstreams = client.upstreams(check=True)
    if as_json:
        print_json(upstreams)
        return
    if not upstreams.upstreams:
        echo("There are no upstreams. Add one: tessera upstreams add NAME URL")
        return
    rows = []
    for row in upstreams.upstreams:
        models = ", ".join(f"{m.name}{'' if m.allowed else ' (no rule)'}" for m in row.models[:6])
        more = f", and {len(row.models) - 6} more" if len(row.models) > 6 else ""  # noqa: PLR2004 - as above
        rows.append((row.name, row.url, row.kind, _state(row), row.key or "none", models + more))
    console().print(table(("name", "address", "kind", "state", "key", "models"), rows, cut="models"))
    for number, rule in enumerate(upstreams.rules, 1):
        echo(f"rule {number}: {_describe(rule)}")
    if not upstreams.rules:
        echo("No rules: nothing is sent to any of them.")


@command.command("check")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(name: str, *, as_json: bool) -> None:
    """Check whether a server answers and accepts the key."""
    with connected() as client:
        row = client.check_upstream(name)
    print_json(row) if as_json else _print_row(row)
    if row.state != "ok":
        raise click.ClickException(f"{name} is not well: {row.reason}")


@command.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a server, its key and its rules."""
    with connected() as client:
        client.remove_upstream(name)
    echo(f"{name} was removed, with its key and rules.")


@command.command("route")
@click.argument("model")
@click.argument("name")
@click.option("--as", "as_model", default=None, help="Name of the model on that server.")
@click.option("--queue", type=click.IntRange(0, 10_000), default=None, help="Only when more than N wait here.")
@click.option("--unfit", is_flag=True, help="Only when the model does not fit here.")
def route(model: str, name: str, as_model: str | None, queue: int | None, *, unfit: bool) -> None:
    """Let requests for MODEL (a name, or a pattern such as 'desk/*') go to the server NAME."""
    with connected() as client:
        rules = client.put_upstream_rule(
            UpstreamRule(model=model, upstream=name, as_model=as_model, queue=queue, unfit=unfit)
        ).rules
    for number, rule in enumerate(rules, 1):
        echo(f"rule {number}: {_describe(rule)}")


@command.command("unroute")
@click.argument("model")
def unroute(model: str) -> None:
    """Remove the rules for MODEL."""
    with connected() as client:
        client.remove_upstream_rule(model)
    echo(f"Requests for {model} stay here.")


def _print_row(row: UpstreamRow) -> None:
    echo(f"{row.name}: {row.url}, {_state(row)}")
    if row.key == "file":
        echo("There is no keyring here, so the key is stored in a file that only this user can read.")


def _state(row: UpstreamRow) -> str:
    if row.state == "ok":
        return f"ok, {counted(len(row.models), 'model')}, {row.latency_ms:.1f} ms"
    return f"{row.state}: {row.reason}" if row.reason else row.state


def _describe(rule: UpstreamRule) -> str:
    there = f"{rule.upstream} as {rule.as_model}" if rule.as_model else rule.upstream
    when = [f"more than {rule.queue} wait here"] if rule.queue is not None else []
    when += ["it does not fit here"] if rule.unfit else []
    return f"{rule.model} to {there}, " + (f"when {' or '.join(when)}" if when else "always")
