"""`tessera verify-device`: do the GPUs, NPUs and other kernels here compute what the CPU's own compute?"""

import asyncio
import json
from typing import TYPE_CHECKING

import click

from app.cli.say import say

if TYPE_CHECKING:
    from engine.dispatch.verify import Row
    from engine.library.catalogue import Catalogue

WRONG_EXIT = 1


@click.command("verify-device")
@click.argument("models", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.pass_context
def command(ctx: click.Context, models: tuple[str, ...], *, as_json: bool) -> None:
    """Compare every usable GPU and NPU with the CPU, on MODELS or on all installed ones.

    Each backend is tried with and without flash attention, with a quantized cache and with some layers left on the
    CPU. What computes wrongly is not used from then on, until driver, kernels or settings change. Ends with 1 where
    something is wrong.
    """
    from devices.as_json import to_json  # noqa: PLC0415 - keeps `tessera --help` fast
    from engine.dispatch.resources import open_resources  # noqa: PLC0415 - see above
    from engine.dispatch.verify import comparable, verify  # noqa: PLC0415 - see above
    from engine.library.catalogue import Catalogue  # noqa: PLC0415 - see above
    from engine.services import user_paths  # noqa: PLC0415 - see above

    resources = open_resources(user_paths())
    machine = resources.machine.full()
    if not any(comparable(d, r) for d in machine.devices for r in d.runtimes):
        raise click.ClickException("No GPU is usable here, and no other device; `tessera doctor` says why.")
    rows: dict[str, list[Row]] = {}
    paths = _paths(Catalogue(), models)
    for name, path in paths.items():
        if not as_json:
            say(f"{name}:")
        rows[name] = asyncio.run(
            verify(path, machine, resources.checks, lambda row: None if as_json else _tell(row))
        )
    if as_json:
        click.echo(json.dumps({name: to_json(found) for name, found in rows.items()}, indent=2))
    if any(row.state in {"wrong", "failed"} for found in rows.values() for row in found):
        ctx.exit(WRONG_EXIT)


def _paths(catalogue: "Catalogue", models: tuple[str, ...]) -> dict[str, str]:
    """File by name: of the models named, or of every GGUF model that is here and generates text."""
    if not models:
        found = [e for e in catalogue.entries() if e.format == "gguf" and e.state == "online" and not e.problem]
        return {entry.id: str(entry.path) for entry in found}
    paths = {}
    for name in models:
        entry = catalogue.get(name)
        if entry is None or entry.format != "gguf":
            raise click.ClickException(
                f"There is no GGUF model named {name!r} here; `tessera models list` shows all."
            )
        paths[name] = str(entry.path)
    return paths


def _tell(row: "Row") -> None:
    right = row.check is not None and row.state == "right"
    numbers = f"KL divergence {row.check.kld_mean:.1e}" if right and row.check else row.reason
    say(f"  {row.device} ({row.backend}), {row.what}: {row.state}. {numbers}")
