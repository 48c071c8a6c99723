"""`tessera kernels`: additional GPU and CPU backends, tested before use and removable."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.echo import InputRefused, NotPossibleHere, echo
from devices.errors import PackRefused

if TYPE_CHECKING:
    from devices.kernel_packs.install import PackTrial
    from devices.kernel_packs.store import Pack, PackStore


@click.group(help="Kernel packs: backends such as Vulkan, installed in addition to the included libraries.")
def command() -> None:
    """The Vulkan pack is included and installed when a GPU is found; others are files or at your address."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def list_packs(*, as_json: bool) -> None:
    """List installed packs, the build in use, and the build for a rollback."""
    packs = _store().packs()
    if as_json:
        click.echo(json.dumps([_described(pack) for pack in packs], indent=2))
    elif not packs:
        echo("No kernel pack is installed. `tessera doctor` says whether one would help here.")
    for pack in packs if not as_json else ():
        state = "in use" if pack.in_use else "kept for rollback" if pack.previous else "not used"
        manifest = pack.manifest
        echo(f"{manifest.name} {manifest.version} ({pack.folder.name}), {manifest.num_bytes >> 20} MiB: {state}")


@command.command("install")
@click.argument("source")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def install_pack(source: str, *, as_json: bool) -> None:
    """Install a kernel pack. SOURCE: a file, a folder, or the name of an included pack or one at `kernels.address`.

    Before the pack is used, its checksums and its version of ggml are checked, and its library is loaded in a
    separate process. The earlier build stays installed for a rollback.
    """
    from devices.fault_rules import load, of_compiler
    from devices.kernel_packs.bundled import pack_named
    from devices.kernel_packs.install import install

    with _refusals(source):
        path = Path(source)
        pack, trial = install(_store(), path if path.exists() else pack_named(source) or _fetched(source))
    if as_json:
        click.echo(json.dumps(_described(pack, trial), indent=2))
        return
    echo(f"{pack.manifest.name} {pack.manifest.version} is used from the next load of a model.")
    for rule in of_compiler(load(), pack.manifest.backend, pack.manifest.built):
        echo(f"  Its compiler has a known fault: {rule.title}. Get {rule.then.engine}.")
    _print_devices(trial)


@command.command("verify")
@click.argument("name", required=False)
def verify_packs(name: str | None) -> None:
    """Check files, ABI and library of the packs in use."""
    from devices.kernel_packs.install import verify

    packs = [pack for pack in _store().active() if name in {None, pack.manifest.name}]
    if not packs:
        raise InputRefused(f"No pack{f' named {name}' if name else ''} is in use.")
    for pack in packs:
        with _refusals(pack.manifest.name):
            trial = verify(pack)
        echo(f"{pack.manifest.name} {pack.manifest.version}: sound, loaded in {trial.seconds:.1f} s.")
        _print_devices(trial)


@command.command("rollback")
@click.argument("name")
def rollback(name: str) -> None:
    """Return to the earlier build of a pack; if there is none, to the included libraries."""
    with _refusals(name):
        pack = _store().rollback(name)
    now = f"{pack.manifest.version} ({pack.folder.name})" if pack else "none: the shipped libraries are used"
    echo(f"{name} now: {now}. This applies from the next load of a model.")


@command.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove every build of a pack."""
    from devices.kernel_packs.bundled import pack_named

    with _refusals(name):
        _store().remove(name)
    echo(f"{name} was removed. Models that are loaded keep it until they are unloaded.")
    if pack_named(name) is not None:
        echo(f"It stays away until you bring it back: tessera kernels install {name}")


class _refusals:  # noqa: N801 - reads as a statement
    """Convert errors to messages with the pack's name."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, PackRefused):
            raise InputRefused(f"{self._what} was refused: {error.reason.rstrip('.')}.") from error
        if isinstance(error, OSError):
            raise NotPossibleHere(f"{self._what} could not be installed: {error.strerror or error}.") from error


def _print_devices(trial: "PackTrial") -> None:
    for device in trial.devices:
        size = f", {device.total_bytes >> 20} MiB" if device.total_bytes else ""
        echo(f"  {device.name}: {device.description}{size}")
    if not trial.devices:
        echo("  It loads, but finds no device here. `tessera doctor` says what its driver needs.")


def _described(pack: "Pack", trial: "PackTrial | None" = None) -> dict[str, Any]:
    from devices.as_json import to_json

    facts: dict[str, Any] = {"in_use": pack.in_use, "previous": pack.previous, "digest": pack.folder.name}
    facts |= {"name": pack.manifest.name, "version": pack.manifest.version, "backend": pack.manifest.backend}
    facts |= {"platform": pack.manifest.platform, "bytes": pack.manifest.num_bytes, "built": pack.manifest.built}
    if trial is not None:
        facts |= {"in_use": True, "devices": to_json(list(trial.devices))}
    return facts


def _store() -> "PackStore":
    from devices.kernel_packs.folder import packs_folder
    from devices.kernel_packs.store import PackStore

    return PackStore(packs_folder())


def _fetched(name: str) -> Path:
    from app.cli.settings_defaults import checked_settings
    from app.kernel_pack_index import fetch

    return fetch(name, checked_settings())
