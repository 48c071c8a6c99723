"""`tessera engine`: other versions of llama-cpp-python beside the shipped one, checked before use."""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.echo import echo
from app.tools.escape import shown_text
from devices.child_command import interpreter
from devices.errors import EngineVersionRefused
from devices.llama_cpp_versions.folder import engines_folder
from devices.llama_cpp_versions.names import SHIPPED
from devices.llama_cpp_versions.store import VersionStore

if TYPE_CHECKING:
    from engine.services import Compared, Services


@click.group(help="Versions of llama-cpp-python beside the shipped one, for models that it does not know yet.")
def command() -> None:
    """Never by themselves: a version is installed, checked and used when its owner says so."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def list_versions(*, as_json: bool) -> None:
    """Installed versions; which is used, for all or for single models."""
    store = _store()
    versions, chosen, shipped_version = store.versions(), store.chosen(), _services().shipped_engine()
    if as_json:
        rows = [
            {
                "version": each.version, "in_use": each.in_use, "previous": each.previous,
                "bytes": each.num_bytes, "models": list(each.models),
            }
            for each in versions
        ]  # fmt: skip
        shipped = {"version": shipped_version, "in_use": chosen is None}
        click.echo(json.dumps({"shipped": shipped, "versions": rows}, indent=2))
        return
    echo(f"{shipped_version} ({SHIPPED}){': in use' if chosen is None else ''}")
    for each in versions:
        states = ["in use"] * each.in_use + ["kept to go back to"] * each.previous
        states += [f"used for {shown_text(path)}" for path in each.models]
        echo(f"{each.version}, {each.num_bytes >> 20} MiB: {', '.join(states) or 'not used'}")


@command.command("install")
@click.argument("version")
@click.option("--model", "models", multiple=True, help="Compare on this installed model too.")
@click.option("--use", "use_now", is_flag=True, help="Use it for all models once it has passed.")
def install_version(version: str, models: tuple[str, ...], *, use_now: bool) -> None:
    """Install VERSION: a number, which is built here from the package index, or the file of a wheel.

    In processes of their own: its structs are compared with what it is called with, then its numbers with those of
    the shipped version, on the bundled model and on --model. One that fails is removed again.
    """
    with _refusals(version), tempfile.TemporaryDirectory(prefix="tessera-wheel-") as work:
        wheel = Path(version) if version.endswith(".whl") else _built(version, Path(work))
        if not wheel.is_file():
            raise EngineVersionRefused(f"there is no file {wheel}")
        found = _services().install_engine(_store(), wheel, models, _print_compared)
        if use_now:
            _store().use(found)
    echo(
        f"{found} is in use from the next load of a model on."
        if use_now
        else f"{found} is installed. `tessera engine use {found}` uses it."
    )


@command.command("use")
@click.argument("version")
@click.option("--model", help="For this installed model only.")
def use_version(version: str, model: str | None) -> None:
    """Use an installed VERSION, or `shipped`, from the next load of a model on. It is checked again before."""
    with _refusals(version):
        _services().use_engine(_store(), version, model, _print_compared)
    echo(f"{shown_text(model) if model else 'Every model'} uses {version} from its next load on.")


@command.command("verify")
def verify_version() -> None:
    """Check the version in use again; one that fails is rolled back."""
    chosen = _store().chosen()
    if chosen is None:
        echo("The shipped version is in use.")
        return
    with _refusals(chosen):
        _services().verify_engine(_store(), _print_compared)
    echo(f"{chosen}: sound.")


@command.command("rollback")
def rollback() -> None:
    """Use the version that was in use before."""
    before = _store().rollback()
    echo(f"In use from the next load of a model on: {before or SHIPPED}.")


@command.command("remove")
@click.argument("version")
def remove(version: str) -> None:
    """Remove a version; what used it uses the shipped one."""
    with _refusals(version):
        _store().remove(version)
    echo(f"{version} was removed. Models that are loaded keep it until they are unloaded.")


def _store() -> VersionStore:
    return VersionStore(engines_folder())


def _services() -> "Services":
    from engine.services import Services  # noqa: PLC0415 - keeps `tessera --help` fast

    return Services()


def _built(version: str, work: Path) -> Path:
    """The wheel of a version, compiled by the installer's own code, with its progress shown."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "installers" / "bootstrap" / "kernels.py").is_file():
        raise EngineVersionRefused(
            "an installed program has no compiler of its own; build the wheel elsewhere and give its file"
        )
    echo(f"Compiling llama-cpp-python {version}; four minutes on two cores that are free.")
    command = interpreter("-m", "installers.bootstrap.kernels", version, str(work.absolute()))
    done = subprocess.run(command, cwd=root, check=False)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or not wheels:
        raise EngineVersionRefused(f"llama-cpp-python {version} could not be built; what it said stands above")
    return wheels[0]


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Errors in words."""
    try:
        yield
    except EngineVersionRefused as error:
        raise click.ClickException(f"{shown_text(what)} was not taken: {shown_text(error.reason)}.") from error
    except OSError as error:
        raise click.ClickException(
            f"{shown_text(what)} could not be installed: {error.strerror or error}."
        ) from error


def _print_compared(compared: "Compared") -> None:
    check = compared.check
    echo(
        f"  {shown_text(Path(compared.model).name)}: {check.rows} rows, KL divergence from the shipped version "
        f"{check.kld_mean:.1e} in mean, {check.kld_max:.1e} at worst"
    )
