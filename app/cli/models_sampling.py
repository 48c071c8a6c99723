"""`tessera models sampling`: what a model samples with, who decided it, and the user's own values."""

import json
from contextlib import closing
from typing import TYPE_CHECKING

import click

from app.cli.echo import echo

if TYPE_CHECKING:
    from engine.services import Chosen

_WORDS = {
    "user": "your setting for this model",
    "file": "the model's file",
    "generation_config": "the publisher's settings",
    "model_card": "the model card",
    "llama.cpp": "llama.cpp's default",
}


@click.command("sampling")
@click.argument("model")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Keep a value for MODEL (repeatable).")
@click.option("--reset", is_flag=True, help="Follow the model's recommendation again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def sampling_command(model: str, changes: tuple[str, ...], reset: bool, as_json: bool) -> None:
    """Show or set what MODEL samples with where a request leaves it open."""
    from engine.services import Services  # noqa: PLC0415 - keeps `tessera --help` fast

    if reset and changes:
        raise click.UsageError("--set and --reset exclude each other.")
    with closing(Services()) as services:
        entry = services.model(model)
        settings = services.model_settings
        if reset:
            settings.set_sampling(entry.id, {})
        elif changes:
            settings.set_sampling(entry.id, {**settings.get(entry.id).sampling, **dict(map(_change, changes))})
        usual, plain = services.sampling(entry)
    if as_json:
        payload = {"id": entry.id, "sampling": usual.facts()}
        click.echo(json.dumps(payload if plain == usual else {**payload, "without_reasoning": plain.facts()}))
        return
    _print_sampling(usual)
    if plain != usual:
        echo("without reasoning:")
        _print_sampling(plain)


def _print_sampling(chosen: "Chosen") -> None:
    for name, fact in chosen.facts().items():
        link = f", {fact['link']}" if "link" in fact else ""
        echo(f"{name:<20}{fact['value']:<8g}{_WORDS[fact['source']]}{link}")


def _change(text: str) -> tuple[str, float | int]:
    """One `--set`."""
    name, _, value = text.partition("=")
    try:
        return name, int(value) if value.lstrip("-").isdecimal() else float(value)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not NAME=NUMBER.", param_hint="--set") from None
