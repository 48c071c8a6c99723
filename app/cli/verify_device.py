"""`tessera verify-device`: compares the results of GPUs, NPUs and other kernels with those of the CPU."""

import json
from typing import TYPE_CHECKING

import click

from app.cli.echo import echo

if TYPE_CHECKING:
    from engine.services import ComparedDevice

WRONG_EXIT = 1


@click.command("verify-device")
@click.argument("models", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.pass_context
def command(ctx: click.Context, models: tuple[str, ...], *, as_json: bool) -> None:
    """Compare every usable GPU and NPU with the CPU, on MODELS or on all installed ones.

    Each backend is tried with and without flash attention, with a quantized cache and with some layers on the
    CPU. A device that computes wrong results is not used until driver, kernels or settings change. Exits with 1 if
    any result is wrong.
    """
    from contextlib import closing

    from engine.api.sentences import with_sentences
    from engine.services import EngineFacade

    rows: dict[str, list[ComparedDevice]] = {}
    with closing(EngineFacade()) as services:
        for name, path in services.gguf_files(models).items():
            if not as_json:
                echo(f"{name}:")
            rows[name] = services.verify_devices(path, lambda row: None if as_json else _print_row(row))
    if as_json:
        click.echo(json.dumps({name: with_sentences(checks) for name, checks in rows.items()}, indent=2))
    if any(row.state in {"wrong", "failed"} for checks in rows.values() for row in checks):
        ctx.exit(WRONG_EXIT)


def _print_row(row: "ComparedDevice") -> None:
    right = row.check is not None and row.state == "right"
    numbers = f"KL divergence {row.check.kld_mean:.1e}" if right and row.check else str(row.reason or "")
    echo(f"  {row.device} ({row.backend}), {row.what}: {row.state}. {numbers}")
