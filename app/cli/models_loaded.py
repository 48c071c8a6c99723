"""`tessera models loaded` and `tessera models unload`: what the running server holds in memory."""

import json

import click


@click.command("loaded")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def loaded_command(as_json: bool) -> None:
    """Show the models the running server has loaded, and the memory they hold."""
    from app.client import running_server  # noqa: PLC0415 - keeps `tessera --help` fast
    from app.format import size  # noqa: PLC0415 - see above

    client = running_server()
    if client is None:
        click.echo(json.dumps({"models": []}) if as_json else "No server runs, so no model is loaded.")
        return
    with client:
        models = client.get("/tessera/v1/loaded")["models"]
        held = {r["owner"]: r["predicted_bytes"] for r in client.get("/tessera/v1/ledger")["reservations"]}
    told = [{**model, "memory_bytes": held.get(model["id"])} for model in models]
    if as_json:
        click.echo(json.dumps({"models": told}))
        return
    for model in told:
        memory = size(model["memory_bytes"]) if model["memory_bytes"] is not None else ""
        click.echo(f"{model['id']:<32}{model['state']:<12}{memory}")
        for note in model.get("notes", ()):
            click.echo(f"  {note}")
    if not told:
        click.echo("No model is loaded.")


@click.command("unload")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def unload_command(model: str, as_json: bool) -> None:
    """Take MODEL out of memory; its running answers end. The next request loads it again."""
    from urllib.parse import quote  # noqa: PLC0415 - see loaded

    from app.client import running_server  # noqa: PLC0415 - see loaded

    client = running_server()
    if client is None:
        click.echo(
            json.dumps({"id": model, "unloaded": False}) if as_json else "No server runs: nothing is loaded."
        )
        return
    with client:
        told = client.post(f"/tessera/v1/models/{quote(model)}/unload")
    words = f"{told['id']} is unloaded." if told["unloaded"] else f"{told['id']} was not loaded."
    click.echo(json.dumps(told) if as_json else words)
