"""`tessera tools`: Model Context Protocol (MCP) servers for chats."""

import json
import sys
from typing import IO, TYPE_CHECKING

import click

from app.cli.echo import InputRefused, echo, failed, print_json
from app.cli.settings_defaults import Number
from app.tools.types import shown_text

if TYPE_CHECKING:
    from app.tools.consent import ConsentRequest, ToolDecision
    from app.tools.mcp_config import McpServerConfig

_SHOWN_DESCRIPTION = 100


@click.group("tools", help="Tools that chats may use: list, add and remove MCP servers. Shared with the window.")
def command() -> None:
    """The group."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_command(as_json: bool) -> None:
    """List the tools for chats, and the saved decisions."""
    from app.tools.catalogue import offered
    from app.tools.consent import ConsentStore

    sources, decisions = offered(), ConsentStore().all()
    if as_json:
        rows = [{"name": s.name, "detail": s.detail, "built_in": s.built_in} for s in sources]
        click.echo(
            json.dumps({"tools": rows, "decided": {key: decision.decision for key, decision in decisions.items()}})
        )
        return
    for source in sources:
        echo(f"{shown_text(source.name):<20} {shown_text(source.detail)}")
    for key, decision in decisions.items():
        echo(f"{decision.decision}: {shown_text(key)}")


@command.command("add", context_settings={"ignore_unknown_options": True})
@click.argument("name", required=False)
@click.argument("where", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--env",
    "values",
    multiple=True,
    metavar="NAME=VALUE",
    help="Environment variable, or HTTP header for an address.",
)
@click.option(
    "--from", "file", type=click.File("r"), help="JSON in the format of other clients; '-' reads standard input."
)
@click.option("--timeout", "call_s", type=Number(1, 3600), help="Time limit of a call, in seconds.  [default: 120]")
def add_command(
    name: str | None,
    where: tuple[str, ...],
    values: tuple[str, ...],
    file: "IO[str] | None",
    call_s: float | None,
) -> None:
    """Add the server NAME: a command with its arguments, or an http(s) address. Nothing is started yet."""
    from app.tools.mcp_config import (
        DEFAULT_CALL_S,
        MAX_CONFIG_BYTES,
        BadMcpConfig,
        McpServerConfig,
        ServerList,
        check_server,
        parse_servers,
    )

    try:
        if file is not None:
            servers = parse_servers(file.read(MAX_CONFIG_BYTES), getattr(file, "name", "The text"))
        elif name and where:
            pairs = dict(_pair(value) for value in values)
            is_url = len(where) == 1 and where[0].startswith(("http://", "https://"))
            limit = call_s or DEFAULT_CALL_S
            new_server = (
                McpServerConfig(name, url=where[0], headers=pairs, call_s=limit)
                if is_url
                else McpServerConfig(name, where, env=pairs, call_s=limit)
            )
            servers = [check_server(new_server, "This")]
        else:
            raise click.UsageError("Name a tool server and its command or address, or use --from FILE.")
        ServerList().add(servers)
    except BadMcpConfig as error:
        raise failed(error) from error
    echo("added: " + ", ".join(shown_text(server.name) for server in servers), err=True)


@command.command("known")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def known_command(as_json: bool) -> None:
    """List well-known servers with their commands. Nothing is added, installed or started."""
    from app.tools.mcp_config import known_servers

    dated, servers = known_servers()
    if as_json:
        print_json({"date": dated, "servers": servers})
        return
    for server in servers:
        echo(f"{server.name:<12} {server.where()}")
        needs = f"needs {server.needs}; " if server.needs else ""
        echo(f"{'':<12} {needs}{server.source}")
    echo(f"Looked up on {dated}. Add one with: tessera tools add NAME COMMAND", err=True)


@command.command("test")
@click.argument("name")
def test_command(name: str) -> None:
    """Start or contact the server NAME once, and list its tools."""
    from pathlib import Path

    from app.tools.mcp_server import probe, short_name

    probed = probe(_server(name), Path.cwd())
    if probed.problem:
        raise click.ClickException(shown_text(probed.problem))
    for spec in probed.specs:
        words = " ".join(spec.description.split())[:_SHOWN_DESCRIPTION]
        echo(f"{shown_text(short_name(name, spec.name)):<24} {shown_text(words)}".rstrip())
    for left_out in probed.left_out:
        echo(f"left out: {shown_text(left_out)}", err=True)
    echo(f"{shown_text(name)} works and offers {len(probed.specs)} tools.", err=True)


@command.command("sign-in")
@click.argument("name")
def sign_in_command(name: str) -> None:
    """Sign in to the server NAME in a browser. Only remote servers that ask for it need this."""
    import webbrowser
    from pathlib import Path

    from app.tools.mcp_server import sign_in

    def open_page(page: str) -> None:
        echo(f"Sign in on this page; Ctrl-C cancels:\n{shown_text(page)}", err=True)
        webbrowser.open(page)

    config = _server(name)
    if not config.url:
        raise InputRefused(f"{name} is started on this computer; only a server at an address has a sign-in.")
    probed = sign_in(config, Path.cwd(), open_page)
    if probed.problem:
        raise click.ClickException(shown_text(probed.problem))
    echo(f"{shown_text(name)} works and offers {len(probed.specs)} tools.", err=True)


@command.command("sign-out")
@click.argument("name")
def sign_out_command(name: str) -> None:
    """Sign out from the server NAME: delete its tokens."""
    from app.tools.mcp_sign_in import SignIns

    SignIns().keep(_server(name).url, None)


@command.command("remove")
@click.argument("name")
def remove_command(name: str) -> None:
    """Remove the server NAME."""
    from app.tools.catalogue import remove_server
    from app.tools.mcp_config import BadMcpConfig

    try:
        remove_server(name)
    except KeyError:
        raise InputRefused(f"There is no server {name!r}; tessera tools list shows them.") from None
    except BadMcpConfig as error:
        raise failed(error) from error


@command.command("forget")
@click.argument("key")
def forget_command(key: str) -> None:
    """Delete a saved decision; KEY as in the list, or 'all'."""
    from app.tools.consent import ConsentStore

    store = ConsentStore()
    decisions = store.all()
    if key != "all" and key not in decisions:
        raise InputRefused(f"There is no saved decision about {key!r}; tessera tools list shows all.")
    for name in decisions if key == "all" else [key]:
        store.keep(name, None)


def ask_person(request: "ConsentRequest") -> "ToolDecision":
    """Prompt for consent before a tool is used; the answer is "no" if stdin is not a terminal."""
    echo(f"\n{shown_text(str(request.title))}", bold=True, err=True)
    echo(shown_text(request.detail), err=True)
    if request.warning:
        echo(shown_text(request.warning), fg="yellow", err=True)
    if not sys.stdin.isatty():
        echo("Declined: no one can be asked here.", err=True)
        return "no"
    words = "Allow? [y]es once, for this [c]hat, [a]lways, ne[v]er, [N]o"
    try:
        answer = click.prompt(words, default="n", show_default=False, err=True).strip().lower()[:1]
    except (click.Abort, EOFError):
        return "no"
    answers: dict[str, ToolDecision] = {"y": "once", "c": "chat", "a": "always", "v": "never"}
    return answers.get(answer, "no")


def _server(name: str) -> "McpServerConfig":
    """The server of that name."""
    from app.tools.mcp_config import BadMcpConfig, ServerList

    try:
        config = ServerList().find(name)
    except BadMcpConfig as error:
        raise failed(error) from error
    if config is None:
        raise InputRefused(f"There is no server {name!r}; tessera tools list shows them.")
    return config


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE.", param_hint="--env")
    return name, value
