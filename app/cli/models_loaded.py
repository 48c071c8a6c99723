"""`tessera models loaded` and `tessera models unload`: what the running server holds in memory."""

import json

import click

from app.cli.echo import echo


@click.command("loaded")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def loaded_command(as_json: bool) -> None:
    """Show the models the running server has loaded, and the memory they hold."""
    import msgspec  # noqa: PLC0415 - keeps `tessera --help` fast

    from app.client import running_server  # noqa: PLC0415 - keeps `tessera --help` fast
    from app.format import size  # noqa: PLC0415 - see above

    client = running_server()
    if client is None:
        click.echo(json.dumps({"models": []}) if as_json else "No server runs, so no model is loaded.")
        return
    with client:
        models = client.loaded()
        held = {r.owner: r.predicted_bytes for r in client.ledger().reservations}
    if as_json:
        rows = [{**msgspec.to_builtins(model), "memory_bytes": held.get(model.id)} for model in models]
        click.echo(json.dumps({"models": rows}))
        return
    for model in models:
        memory = size(held[model.id]) if model.id in held else ""
        echo(f"{model.id:<32}{model.state:<12}{memory}")
        for note in model.notes:
            echo(f"  {note}")
    if not models:
        echo("No model is loaded.")


@click.command("load")
@click.argument("model")
@click.option("--ctx", type=click.IntRange(16, 1 << 24), help="Context in tokens.")
@click.option("--ttl", "ttl_s", type=click.FloatRange(0, 1e9), help="Seconds it stays when idle; 0: for good.")
@click.option("--pin/--no-pin", "pinned", default=None, help="Let it stay until it is unloaded by hand.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def load_command(model: str, ctx: int | None, ttl_s: float | None, pinned: bool | None, as_json: bool) -> None:
    """Load MODEL into the running server's memory."""
    import msgspec  # noqa: PLC0415 - see loaded

    from app.client import running_server  # noqa: PLC0415 - see loaded
    from engine.api.models import LoadRequest  # noqa: PLC0415 - see loaded

    client = running_server()
    if client is None:
        raise click.ClickException(
            "No server runs to hold it. Start one: tessera serve, or tessera service install"
        )
    with client:
        loaded = client.load(model, LoadRequest(n_ctx=ctx, ttl_s=ttl_s, pinned=pinned))
    if as_json:
        click.echo(msgspec.json.encode(loaded).decode())
        return
    echo(f"{loaded.id} is loaded with a context of {loaded.n_ctx} tokens on {loaded.backend}.")
    for note in loaded.notes:
        echo(f"  {note}")


@click.command("unload")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def unload_command(model: str, as_json: bool) -> None:
    """Take MODEL out of memory; its running answers end. The next request loads it again."""
    import msgspec  # noqa: PLC0415 - see loaded

    from app.client import running_server  # noqa: PLC0415 - see loaded

    client = running_server()
    if client is None:
        click.echo(
            json.dumps({"id": model, "unloaded": False}) if as_json else "No server runs: nothing is loaded."
        )
        return
    with client:
        answer = client.unload(model)
    words = f"{answer.id} is unloaded." if answer.unloaded else f"{answer.id} was not loaded."
    click.echo(json.dumps(msgspec.to_builtins(answer)) if as_json else words)
