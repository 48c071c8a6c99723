"""`tessera licences`: components of the program and their licences."""

import click
import msgspec

from app.cli.echo import InputRefused, echo
from app.tools.types import shown_text


@click.command("licences")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def command(name: str | None, *, as_json: bool) -> None:
    """List packages, libraries, data and fonts with their licences; with NAME, print the text of one."""
    from app.licences import components, own_licence

    matches = [each for each in components() if name is None or each.name.casefold() == name.casefold()]
    if name is not None and not matches:
        if name.casefold() == "tessera":
            echo(own_licence())
            return
        raise InputRefused(f"No part is named {shown_text(name)}; `tessera licences` lists all.")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(matches), indent=2).decode())
    elif name is not None:
        echo(shown_text(matches[0].text) or "Its package contains no licence text.")
    else:
        for each in matches:
            echo(f"{each.name} {each.version}".strip() + f": {shown_text(each.licence)}")
