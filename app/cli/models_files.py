"""`tessera models import`, `link`, `unlink`, `verify`, `rename` and `remove`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.echo import InputRefused, echo, print_json
from app.cli.progress import bar

if TYPE_CHECKING:
    from app.client import Client
    from engine.api.library import Model
    from quantize.types import FloatType

_BROKEN_EXIT = 3


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def import_command(path: Path, as_json: bool) -> None:
    """Copy the model at PATH (a file or a folder) into the library."""
    from app.cli.job_line import finish, this_computers_server
    from engine.api.jobs import ModelMade

    if (address := str(path)).startswith(("http:/", "https:/")):  # pathlib merges the slashes
        raise InputRefused(
            f"{address.replace(':/', '://')} is an address. To download a model: tessera models pull owner/name"
        )
    source = str(path.expanduser().absolute())
    source.encode()  # main() reports a name that is not UTF-8 text, which JSON cannot carry
    with this_computers_server() as client, bar() as show:
        imported = finish(client, client.import_model(source), ModelMade, show)
    words = (
        f"{imported.model} is ready."
        if imported.is_new
        else f"{imported.model} has the same content: nothing was copied."
    )
    _print_result(as_json, {"model": imported.model, "path": imported.path, "is_new": imported.is_new}, words)


@click.command("convert")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("out", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--type",
    "float_type",
    type=click.Choice(["auto", "F16", "BF16", "F32"], case_sensitive=False),
    default="auto",
    help="Type of the weights. auto keeps 16-bit weights and converts F32 to F16.",
)
@click.option("--yes", "-y", is_flag=True, help="Download llama.cpp's converter without asking if it is needed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def convert_command(folder: Path, out: Path | None, float_type: "FloatType", yes: bool, as_json: bool) -> None:
    """Convert the Hugging Face FOLDER (safetensors) to a GGUF file and add it to the library.

    Tessera's own converter knows the usual families; for others it offers llama.cpp's, downloaded once.
    """
    from app.cli.converter import with_converter
    from app.cli.job_line import finish, this_computers_server
    from engine.api.converting import ConvertedFile, ConvertRequest

    target = str(out.absolute()) if out else None
    request = ConvertRequest(source=str(folder.absolute()), out=target, float_type=float_type)
    with this_computers_server() as client:

        def converted() -> ConvertedFile:
            with bar() as show:
                return finish(client, client.convert(request), ConvertedFile, show)

        model = with_converter(client, converted, ask=not yes)
    if not as_json:
        for note in model.notes:
            echo(note, err=True)
    facts = {"model": model.model, "path": model.path, "type": model.type, "notes": model.notes}
    _print_result(as_json, facts, f"{model.model} is ready: {model.path}")


@click.command("link")
@click.argument("where", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def link_command(where: str | None, as_json: bool) -> None:
    """Use models in place, without copying.

    WHERE: a file, a folder, lmstudio, ollama, llama.cpp, jan, huggingface. Without it: list what could be linked.
    """
    from app.cli.job_line import this_computers_server
    from engine.services import EngineFacade

    if where is None:
        folders = EngineFacade().foreign_folders()
        if as_json:
            click.echo(json.dumps({"folders": [{"app": f.app, "path": str(f.path)} for f in folders]}))
            return
        for folder in folders:
            echo(f"{folder.app:<13}{folder.path}")
        if not folders:
            echo("No models of other applications were found. Name a folder: tessera models link PATH")
        return
    path = Path(where).expanduser()
    with this_computers_server() as client:
        added = list(client.link(str(path.absolute()) if path.exists() else where).added)
    if as_json:
        click.echo(json.dumps({"added": added}))
    elif added:
        echo("\n".join(added))
    else:
        echo("Linked. There is no new model in it.")


@click.command("unlink")
@click.argument("where", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def unlink_command(where: str | None, as_json: bool) -> None:
    """Stop using the models of a linked folder. Their files stay.

    WHERE: a linked folder, lmstudio, ollama, llama.cpp, jan, huggingface. Without it: list the linked folders.
    """
    from app.cli.job_line import this_computers_server

    with this_computers_server() as client:
        if where is None:
            linked = client.linked_folders()
        else:
            path = Path(where).expanduser()
            is_path = path.exists() or len(path.parts) > 1  # a linked folder may be gone
            unlinked = client.unlink(str(path.absolute()) if is_path else where)
    if as_json:
        print_json(linked if where is None else unlinked)
    elif where is not None:
        for folder in unlinked.folders:
            echo(f"Unlinked: {folder}")
        echo(f"Models taken from the list: {', '.join(unlinked.removed) or 'none'}. Their files stay.")
    else:
        for one in linked.folders:
            state = "" if one.is_here else "  (not there now)"
            echo(f"{one.models:>4}  {one.app:<13}{one.path}{state}")
        if not linked.folders:
            echo("No folder is linked. Link one: tessera models link PATH")


def _id_of(name: str, *, is_removed: bool = False) -> str:
    """The id of the model with this name or alias; ids have no slash, which an address would take for a separator.

    Raises: ModelNotFound. InputRefused: the model is to be removed, and the name is an alias.
    """
    from contextlib import closing

    from engine.services import EngineFacade

    with closing(EngineFacade()) as services:
        alias_of = services.model_settings.aliases().get(name.casefold())
        if alias_of is not None and is_removed:
            raise InputRefused(
                f"{name} is an alias of {alias_of}. Remove the alias: tessera models alias {name!r} --remove"
            )
        return services.model(name).id


@click.command("verify")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify_command(model: str, as_json: bool) -> None:
    """Check MODEL's files against their published checksums."""
    from app.cli.job_line import finish, this_computers_server
    from engine.api.library import Verification

    with this_computers_server() as client, bar() as show:
        verification = finish(client, client.verify(_id_of(model)), Verification, show)
    if as_json:
        print_json(verification)
    else:
        words = {"hub": "as the hub promised", "owner": "as its owner recorded", "earlier": "as last time"}
        for check in verification.files:
            verdict = words.get(verification.basis, "recorded") if check.ok else check.problem
            echo(f"{check.path}\n  sha256 {check.sha256}: {verdict}")
    if not verification.ok:
        raise SystemExit(_BROKEN_EXIT)


@click.command("rename")
@click.argument("model")
@click.argument("display_name", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def rename_command(model: str, display_name: str, as_json: bool) -> None:
    """Change the displayed name of MODEL to NAME ("" restores the original); its id stays."""
    from app.cli.job_line import this_computers_server

    with this_computers_server() as client:
        entry = client.rename(_id_of(model), display_name)
    _print_result(as_json, {"model": entry.id, "name": entry.name}, f"{entry.id} is shown as {entry.name}.")


@click.command("alias")
@click.argument("alias", required=False)
@click.argument("model", required=False)
@click.option("--remove", is_flag=True, help="Remove ALIAS.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def alias_command(alias: str | None, model: str | None, remove: bool, as_json: bool) -> None:
    """Make ALIAS (a name, or a pattern such as claude-*) another name of MODEL. Without arguments: list aliases.

    Programs that request a fixed name, such as gpt-4o, then get MODEL.
    """
    from app.cli.job_line import this_computers_server
    from engine.services import EngineFacade

    if alias is None:
        aliases = EngineFacade().model_settings.aliases()
        lines = "\n".join(f"{name:<32}{of}" for name, of in sorted(aliases.items()))
        _print_result(as_json, {"aliases": aliases}, lines or "There are no aliases.")
        return
    if remove == (model is not None):
        raise click.UsageError(
            "Which model? tessera models alias ALIAS MODEL, or tessera models alias ALIAS --remove"
        )
    with this_computers_server() as client:
        if model is None:
            client.remove_alias(alias)
            _print_result(as_json, {"alias": alias, "removed": True}, f"{alias} is no longer an alias.")
            return
        entry = client.set_alias(alias, model)
    _print_result(as_json, {"alias": entry.alias, "model": entry.model}, f"{entry.alias} means {entry.model}.")


@click.command("du")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def du_command(as_json: bool) -> None:
    """Show the disk space of models, trash and caches."""
    from contextlib import closing

    from devices.atomic_file import folder_bytes
    from engine.services import EngineFacade

    with closing(EngineFacade()) as services:
        rows = [(entry.id, entry.size_bytes, entry.origin.kind) for entry in services.models() if entry.files]
        paths = services.paths
    own = sum(count for _, count, kind in rows if kind not in {"bundled", "installed", "linked"})
    more = {
        "trash": folder_bytes(paths.models / ".trash"),
        "unfinished downloads": folder_bytes(paths.models / ".partial"),
        "cached prompts": folder_bytes(paths.cache / "prefixes"),
    }
    if as_json:
        models = [{"model": model, "bytes": count, "from": kind} for model, count, kind in rows]
        click.echo(json.dumps({"models": models, "own_bytes": own, **more, "folder": str(paths.models)}))
        return
    for model, count, kind in sorted(rows, key=lambda row: -row[1]):
        echo(f"{_size(count):>12}  {model}{f' ({kind})' if kind in ('bundled', 'installed', 'linked') else ''}")
    echo(f"{_size(own):>12}  models in {paths.models}")
    for name, count in more.items():
        echo(f"{_size(count):>12}  {name}")


@click.command("move-folder")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def move_folder_command(folder: Path, as_json: bool) -> None:
    """Move all models to FOLDER, a new or empty one, and use that folder from now on.

    Models answer from the old folder until every file is in the new one. Ctrl-C pauses the move; the same command
    continues it, after a crash too.
    """
    from app.cli.job_line import finish, this_computers_server
    from engine.api.library import Moved

    with this_computers_server() as client, bar() as show:
        job = client.move_models(str(folder.expanduser().absolute()))
        done = finish(client, job, Moved, show, on_interrupt="pause")
    for path in done.left:
        echo(f"not deleted, because it has changed or cannot be deleted: {path}", err=True)
    words = f"The models ({_size(done.size_bytes)}) are in {done.path} now."
    _print_result(as_json, {"path": done.path, "size_bytes": done.size_bytes, "left": list(done.left)}, words)


@click.command("remove")
@click.argument("model", required=False)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--undo", metavar="TICKET", help="Restore a removed model.")
@click.option("--trash", "show_trash", is_flag=True, help="Show what can be restored.")
@click.option("--empty-trash", is_flag=True, help="Delete removed models permanently.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def remove_command(
    model: str | None, yes: bool, undo: str | None, show_trash: bool, empty_trash: bool, as_json: bool
) -> None:
    """Remove MODEL. Linked files stay where they are; all others can be restored."""
    from app.cli.job_line import this_computers_server

    if undo is None and not show_trash and not empty_trash and model is None:
        raise click.UsageError("Which model? See: tessera models list")
    if show_trash and undo is None:
        _show_trash(as_json=as_json)
        return
    with this_computers_server() as client:
        if undo is not None:
            back = client.restore(undo)
            _print_result(as_json, {"model": back.id}, f"{back.id} is back.")
        elif empty_trash:
            total = sum(r.freed_bytes for r in client.trash())
            if not yes:
                click.confirm(f"Delete {_size(total)} permanently?", abort=True, err=True)
            freed = client.empty_trash()
            _print_result(as_json, {"freed_bytes": freed}, f"{_size(freed)} freed.")
        elif model is not None:
            _remove(client, client.model(_id_of(model, is_removed=True)), as_json=as_json, ask=not yes)


def _remove(client: "Client", entry: "Model", *, as_json: bool, ask: bool) -> None:
    comes_along = entry.origin.kind in {"bundled", "installed"}
    keeps_files = entry.origin.kind == "linked" or comes_along
    if ask:
        what = "Forget" if keeps_files else f"Remove ({_size(entry.size_bytes)})"
        click.confirm(f"{what} {entry.id}?", abort=True, err=True)
    removed = client.remove(entry.id)
    undo = f"Undo with: tessera models remove --undo {removed.ticket}"
    if comes_along:
        words = (
            f"{entry.id} is no longer listed; its file came with the installation and stays: {entry.path}. {undo}"
        )
    elif keeps_files:
        words = (
            f"{entry.id} is no longer listed. Its {_size(entry.size_bytes)} stay at {entry.path}: to free them, "
            f"delete that file, or remove it in its application. {undo}"
        )
    else:
        words = (
            f"{entry.id} is in the trash. To free its {_size(removed.freed_bytes)}: tessera models remove "
            f"--empty-trash. {undo}"
        )
    facts = {
        "model": entry.id,
        "ticket": removed.ticket,
        "files_kept": keeps_files,
        "path": entry.path,
        "freed_bytes": removed.freed_bytes,
    }
    _print_result(as_json, facts, words)


def _show_trash(*, as_json: bool) -> None:
    from engine.services import EngineFacade

    services = EngineFacade()
    removed = services.trash()
    services.close()
    rows = [{"ticket": r.ticket, "model": r.entry.id, "bytes": r.freed_bytes} for r in removed]
    lines = "\n".join(f"{r.ticket:<40}{_size(r.freed_bytes)}" for r in removed)
    _print_result(as_json, {"trash": rows}, lines or "The trash is empty.")


def _size(count: int) -> str:
    from app.format import size

    return size(count)


def _print_result(as_json: bool, facts: dict[str, Any], words: str) -> None:
    click.echo(json.dumps(facts) if as_json else words)
