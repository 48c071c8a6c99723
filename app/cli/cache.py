"""`tessera cache`: prompts cached on disk, and the limit of their total size."""

import contextlib
import json
from pathlib import Path
from typing import Any

import click

from app.cli.echo import echo
from devices.atomic_file import folder_bytes

_MIB = 1 << 20


@click.group("cache", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Show, limit and clear the caches."""
    if ctx.invoked_subcommand is None:
        _show(as_json=as_json)


class _Mebibytes(click.IntRange):
    """A number of MiB, or a size with its unit, such as 10GB."""

    name = "number of MiB, or size such as 10GB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert to a number within the range."""
        from app.cli.quantize_options import Size

        if isinstance(value, str) and value.strip()[-1:].isalpha():
            value = int(Size().convert(value, param, ctx)) // _MIB
        return super().convert(value, param, ctx)


@command.command("limit")
@click.argument("mib", type=_Mebibytes(0, 1 << 30), required=False)
def limit_command(mib: int | None) -> None:
    """Limit the prompt cache on disk to MIB mebibytes, or to a size such as 10GB; without it, show the limit.

    0 turns the cache off.
    """
    from app.cli.settings_defaults import checked_settings
    from app.setting import SettingsError
    from app.settings import save

    now = checked_settings()
    if mib is None:
        echo(f"{now.integer('cache.prefix_mib')} MiB")
        return
    if "cache.prefix_mib" in now.fixed:
        raise click.UsageError("The limit is set by the environment variable TESSERA_CACHE_PREFIX_MIB.")
    try:
        save(now.changed("cache.prefix_mib", mib), names={"cache.prefix_mib"})
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    freed = _shrink(_prefixes(), mib * _MIB)
    echo(f"Cached prompts may use {mib} MiB, in servers started from now on. {_size(freed)} freed.")


@command.command("clear")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def clear_command(yes: bool) -> None:
    """Delete the prompt cache on disk. Conversations stay; their next prompt takes longer."""
    count = folder_bytes(_prefixes())
    if not count:
        echo("There are no cached prompts.")
        return
    if not yes:
        click.confirm(f"Delete {_size(count)} of cached prompts?", abort=True, err=True)
    echo(f"{_size(_shrink(_prefixes(), 0))} freed.")


def _show(*, as_json: bool) -> None:
    from app.cli.settings_defaults import checked_settings
    from engine.services import user_paths

    folder, limit = user_paths().cache, checked_settings().integer("cache.prefix_mib")
    sizes = {path.name: folder_bytes(path) for path in sorted(folder.glob("*")) if path.is_dir()}
    prefixes = sizes.pop("prefixes", 0)
    if as_json:
        facts = {"folder": str(folder), "prefix_bytes": prefixes, "limit_bytes": limit * _MIB, "others": sizes}
        click.echo(json.dumps(facts))
        return
    echo(f"{_size(prefixes):>12}  cached prompts; the limit is {limit} MiB")
    for name, count in sizes.items():
        echo(f"{_size(count):>12}  {name}")
    echo(f"in {folder}")


def _prefixes() -> Path:
    from engine.services import user_paths

    return user_paths().cache / "prefixes"


def _shrink(folder: Path, limit: int) -> int:
    """Delete the oldest prefixes until the rest is within the limit; return the number of bytes freed."""
    files = []
    for path in folder.glob("*/*.kv"):
        with contextlib.suppress(OSError):
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
    total = sum(count for _, count, _ in files)
    freed = 0
    for _, count, path in sorted(files):
        if total - freed <= limit:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            freed += count
    return freed


def _size(count: int) -> str:
    from app.format import size

    return size(count)
