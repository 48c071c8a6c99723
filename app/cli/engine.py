"""`tessera engine`: other versions of llama-cpp-python, tested before use, and any build of llama-server."""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.connection import connected
from app.cli.echo import InputRefused, NotPossibleHere, echo
from app.tools.types import shown_text
from devices.child_command import interpreter
from devices.errors import EngineVersionRefused
from devices.llama_cpp_versions.folder import engines_folder
from devices.llama_cpp_versions.names import SHIPPED
from devices.llama_cpp_versions.store import VersionStore

if TYPE_CHECKING:
    from devices.fault_rules import Rules
    from engine.services import Compared, EngineFacade


@click.group(help="Other builds of llama.cpp: versions of llama-cpp-python, and llama-server programs.")
def command() -> None:
    """You decide when a version is installed, checked and used; nothing changes by itself."""


@command.command("add", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("program", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def add_program(name: str, program: Path, arguments: tuple[str, ...]) -> None:
    """Add PROGRAM as NAME: any build of llama-server, such as a fork for a chip or a newer version.

    ARGUMENTS are added to its command line. `tessera engine use NAME --model MODEL` chooses it for a model. Then
    Tessera starts it on loopback, reserves its memory, restarts it after a crash and stops it when it is idle.
    """
    with _refusals(str(program)):
        version, devices = _services().add_program(name, program, arguments)
    seen = f"devices: {', '.join(devices)}" if devices else "it sees no device but the CPU"
    echo(f"{name}: llama-server {shown_text(version)}, {shown_text(seen)}.")
    echo(f"Nothing uses it yet: tessera engine use {name} --model MODEL")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def list_versions(*, as_json: bool) -> None:
    """List installed versions, and which one is used for all or for single models."""
    store, services = _store(), _services()
    versions, chosen, shipped_version = store.versions(), store.chosen(), services.shipped_engine()
    if as_json:
        rows = [
            {
                "version": each.version, "in_use": each.in_use, "previous": each.previous,
                "bytes": each.num_bytes, "models": list(each.models),
            }
            for each in versions
        ]  # fmt: skip
        shipped = {"version": shipped_version, "in_use": chosen is None}
        added = [
            {"name": name, "program": row.program, "arguments": row.arguments, "models": services.models_in(name)}
            for name, row in services.programs.all().items()
        ]
        click.echo(json.dumps({"shipped": shipped, "versions": rows, "programs": added}, indent=2))
        return
    echo(f"{shipped_version} ({SHIPPED}){': in use' if chosen is None else ''}")
    for each in versions:
        states = ["in use"] * each.in_use + ["kept for rollback"] * each.previous
        states += [f"used for {shown_text(path)}" for path in each.models]
        echo(f"{each.version}, {each.num_bytes >> 20} MiB: {', '.join(states) or 'not used'}")
    for name, row in services.programs.all().items():
        words = shown_text(" ".join((row.program, *row.arguments)))
        served = ", ".join(f"used for {shown_text(model)}" for model in services.models_in(name))
        echo(f"{name}, {row.kind} ({words}): {served or 'not used'}")


@command.command("install")
@click.argument("version")
@click.option("--model", "models", multiple=True, help="Compare on this installed model too.")
@click.option("--use", "use_now", is_flag=True, help="Use it for all models once it has passed.")
@click.option("--force", is_flag=True, help="Install it although a GPU of this computer is known to fail with it.")
def install_version(version: str, models: tuple[str, ...], *, use_now: bool, force: bool) -> None:
    """Install VERSION: a number, which is built from the package index, or a wheel file.

    Child processes compare its structs with those that Tessera uses, and its results with those of the included
    version, on the included model and on --model. If a check fails, it is removed again. If it is known to fail
    with a GPU of this computer (tessera engine faults), it is installed only with --force.
    """
    with _refusals(version), tempfile.TemporaryDirectory(prefix="tessera-wheel-") as work:
        if not force and (fault := _services().engine_fault(version)):
            raise EngineVersionRefused(f"{fault}. --force installs it anyway")
        wheel = Path(version) if version.endswith(".whl") else _built(version, Path(work))
        if not wheel.is_file():
            raise EngineVersionRefused(f"there is no file {wheel}")
        installed = _services().install_engine(_store(), wheel, models, _print_compared, force=force)
        if use_now:
            _store().use(installed)
    echo(
        f"{installed} is used from the next load of a model."
        if use_now
        else f"{installed} is installed. `tessera engine use {installed}` uses it."
    )


@command.command("faults")
@click.option("--all", "all_rules", is_flag=True, help="List the faults of other computers too.")
@click.option(
    "--update", type=click.Path(path_type=Path), help="Use the rules in this file, which has a signature."
)
@click.option("--forget", metavar="RULE", help="Delete the rule of a fault that was found on this computer.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def fault_rules(*, all_rules: bool, update: Path | None, forget: str | None, as_json: bool) -> None:
    """List known faults of engines, chips and drivers, those of this computer's GPUs first.

    Tessera avoids them or uses other settings, as the System page and `tessera doctor` show. The list ends with
    the faults that checks on this computer found: --json has their numbers for a report, but no texts, and
    --forget deletes one. --update reads newer rules from a file. Its minisign signature (FILE.minisig) must match
    a key in kernels.keys.
    """
    import msgspec

    from devices import fault_rules as rules_file

    if update is not None:
        updated = _updated(update)
        echo(f"{len(updated.rules)} rules of {updated.issued} are used from the next load of a model.")
        return
    services = _services()
    if forget is not None:
        if not services.forget_fault(forget):
            raise InputRefused(f"No rule {shown_text(forget)} was found on this computer.")
        echo(f"{forget} was deleted. The device is used again from the next load of a model.")
        return
    (rules, here), own = services.fault_rules(), services.found_faults()
    answers = services.wrong_answers()
    shown = [rule for rule in rules.rules if all_rules or rule.id in here]
    if as_json:
        rows = [{**rules_file.as_json(rule), "here": here.get(rule.id)} for rule in shown]
        report = {
            "issued": str(rules.issued),
            "rules": rows,
            "found_here": own,
        }
        report["wrong_answers"] = [msgspec.to_builtins(one) for one in answers]
        click.echo(json.dumps(report, indent=2))
        return
    for rule in sorted(shown, key=lambda each: each.id not in here):
        where = f"here: {shown_text(here[rule.id])}" if rule.id in here else "not here"
        echo(f"{rule.id} ({rule.effect}, {where})")
        echo(f"  {shown_text(rule.title)}")
        if way := rule.then.advice or rule.then.engine:
            echo(f"  {shown_text(way)}")
        echo(f"  {', '.join(map(shown_text, rule.sources))}")
    for fault in own:
        echo(f"Found by the check of this computer: {shown_text(fault['what'])}: {shown_text(fault['reason'])}")
    for wrong in answers:
        echo(
            f"Found in answers of {shown_text(wrong.model)}: {shown_text(wrong.reason)} ({shown_text(wrong.rule)})"
        )
    if not shown:
        echo(f"None of the {len(rules.rules)} known faults concerns a GPU of this computer. --all lists them.")


def _updated(path: Path) -> "Rules":
    """Put the rules of a signed file into use, and return them."""
    from app.cli.settings_defaults import checked_settings
    from app.kernel_pack_index import check_signature
    from devices.errors import FaultRulesRefused, PackRefused
    from devices.fault_rules import MAX_BYTES, update

    keys = checked_settings().text("kernels.keys").split()
    if not keys:
        raise InputRefused("kernels.keys names no key that may sign rules (`tessera settings set`).")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        check_signature(data, path.with_name(f"{path.name}.minisig").read_text(encoding="utf-8"), keys, "the file")
        return update(data)
    except (FaultRulesRefused, PackRefused) as error:
        raise InputRefused(f"{shown_text(str(path))} was refused: {error.reason.rstrip('.')}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputRefused(f"{shown_text(str(path))} and its .minisig cannot be read: {error}.") from error


@command.command("use")
@click.argument("version")
@click.option("--model", help="For this installed model only.")
def use_version(version: str, model: str | None) -> None:
    """Use an installed VERSION, an added program, or `shipped`, from the next load of a model.

    A version is checked again first. A program needs --model.
    """
    services = _services()
    is_program = version in services.programs.all()
    if is_program and model is None:
        raise click.UsageError(f"{version} is a program: choose its model with --model.")
    if model is not None and (is_program or (version == SHIPPED and _in_program(services, model))):
        with connected(here=True) as client:
            done = client.set_engine(model, version if is_program else None)
        where = "is unloaded and is" if done.unloaded else "is"
        echo(f"{shown_text(done.id)} {where} served by {version} from its next load.")
        return
    with _refusals(version):
        _services().use_engine(_store(), version, model, _print_compared)
    echo(f"{shown_text(model) if model else 'Every model'} uses {version} from its next load.")


@command.command("verify")
def verify_version() -> None:
    """Check the version in use; roll back if it fails."""
    chosen = _store().chosen()
    if chosen is None:
        echo("The shipped version is in use.")
        return
    with _refusals(chosen):
        _services().verify_engine(_store(), _print_compared)
    echo(f"{chosen}: sound.")


@command.command("rollback")
def rollback() -> None:
    """Return to the version used before."""
    before = _store().rollback()
    echo(f"From the next load of a model, {before or SHIPPED} is used.")


@command.command("remove")
@click.argument("version")
def remove(version: str) -> None:
    """Remove a version or an added program; its models use the included version."""
    services = _services()
    if version in services.programs.all():
        with _refusals(version):
            served = services.remove_program(version)
        more = f" {', '.join(map(shown_text, served))}: Tessera's own engine again." if served else ""
        echo(f"{version} was removed from the list; its file stays.{more}")
        return
    with _refusals(version):
        _store().remove(version)
    echo(f"{version} was removed. Models that are loaded keep it until they are unloaded.")


def _in_program(services: "EngineFacade", model: str) -> bool:
    """Return True if a program that the user added serves this model."""
    return any(model in services.models_in(name) for name in services.programs.all())


def _store() -> VersionStore:
    return VersionStore(engines_folder())


def _services() -> "EngineFacade":
    from engine.services import EngineFacade

    return EngineFacade()


def _built(version: str, work: Path) -> Path:
    """Compile a version's wheel with the installer's code and show its progress."""
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
        raise EngineVersionRefused(f"llama-cpp-python {version} could not be built; see its output above")
    return wheels[0]


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Convert errors to messages."""
    try:
        yield
    except EngineVersionRefused as error:
        raise InputRefused(f"{shown_text(what)} was refused: {shown_text(error.reason).rstrip('.')}.") from error
    except OSError as error:
        raise NotPossibleHere(f"{shown_text(what)} could not be installed: {error.strerror or error}.") from error


def _print_compared(compared: "Compared") -> None:
    check = compared.check
    echo(
        f"  {shown_text(Path(compared.model).name)}: {check.rows} rows, KL divergence from the shipped version "
        f"{check.kld_mean:.1e} in mean, {check.kld_max:.1e} at worst"
    )
