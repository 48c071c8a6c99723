"""`tessera replay`: repeats the response of a receipt bit for bit, or finds the change that makes it differ."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from app.cli.echo import InputRefused, echo, print_json

if TYPE_CHECKING:
    from engine.api.receipts import Exchange

# A receipt contains its prompt twice; a prompt that fits a context is shorter than half of this.
MOST_BYTES: Final = 64 << 20


@click.command(
    help="Repeat the request of the receipt in FILE and compare the answers. Exits with 1 if they differ."
)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--explain", is_flag=True, help="Repeat with today's versions, and restore one part at a time.")
@click.option("--model", "-m", default="", help="Model to use instead of the receipt's.")
@click.option("--old-model", default="", help="With --explain: a model with the file that the receipt names.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(file: Path, *, explain: bool, model: str, old_model: str, as_json: bool) -> None:
    """Replay one receipt."""
    import msgspec

    from app.cli.connection import connected
    from app.tools.types import shown_text
    from engine.api.receipts import Receipt, ReplayRequest

    if file.stat().st_size > MOST_BYTES:
        raise InputRefused(f"{file} has {file.stat().st_size} bytes: it is not a receipt.")
    try:
        receipt = msgspec.json.decode(file.read_bytes(), type=Receipt)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputRefused(f"{file} is not a receipt: {error}.") from None
    request = ReplayRequest(receipt=receipt, explain=explain, model=model, old_model=old_model)
    with connected() as client:
        replay = client.replay(request)
    if as_json:
        print_json(replay)
    else:
        echo(shown_text(replay.text))
        echo("The same answer." if replay.same else "Another answer.", err=True, bold=True)
        for exchange in replay.exchanged:
            echo(shown_text(sentence(exchange)), err=True)
        if not explain and replay.changed:
            why = "" if replay.same else " `tessera replay --explain` tries what it does."
            echo(f"Not as it was: {shown_text(', '.join(replay.changed))}.{why}", err=True)
    sys.exit(0 if replay.same else 1)


def sentence(exchange: "Exchange") -> str:
    """Describe the effect of one change on the response."""
    if exchange.same is None:
        return f"The {exchange.part} is not as it was ({exchange.reason or 'it was not put back'})."
    return (
        f"The {exchange.part}; with the old one the answer is {'the same' if exchange.same else 'still another'}."
    )
