"""Installs other versions of llama-cpp-python, compares them with the shipped one, rolls back wrong ones."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from devices.child import run_child
from devices.child_command import child_command
from devices.errors import EngineVersionRefused, EngineVersionRolledBack
from devices.fault_rules import Rule, Rules, engine_builds, on_machine
from devices.llama_cpp_versions.folder import VARIABLE
from devices.llama_cpp_versions.names import SHIPPED
from devices.llama_cpp_versions.store import EngineVersion, VersionStore
from devices.llama_cpp_versions.wheel import checked_name
from devices.msgspec_lock import learned
from devices.types import Device, Machine
from engine.core.types import DeviceCheck
from engine.runner.protocol import LoadSettings

# A model is read and computes 150 tokens, twice; see REFERENCE_TIMEOUT_S.
TIMEOUT_S: Final = 180.0


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Result of comparing a version with the shipped one on a model."""

    model: str
    check: DeviceCheck


def install(
    store: VersionStore,
    wheel: Path,
    models: Sequence[Path],
    on_row: Callable[[Compared], None],
    refused: Callable[[str], str] = lambda _version: "",
) -> EngineVersion:
    """Add the version in a wheel and compare it on these models. It is not used yet.

    One that fails is removed again, unless it was there before under the same name and is in use. `refused` says
    why a version must not be installed here; empty: it may be. Raises: EngineVersionRefused, OSError.
    """
    if reason := refused(checked_name(wheel)):
        raise EngineVersionRefused(reason)
    version = store.add(wheel)
    try:
        compare(store, version.version, models, on_row)
    except EngineVersionRefused:
        store.remove(version.version)
        raise
    return version


def faults_of(version: str, machine: Machine, rules: Rules) -> list[tuple[Device, str, Rule]]:
    """Faults of this version's llama.cpp on a GPU here that only another backend avoids.

    Empty if the rules do not know which build of llama.cpp the version has.
    """
    builds = engine_builds(rules, version)
    if builds is None:
        return []
    rows = on_machine(rules, machine, builds)
    return [row for row in rows if row[2].when.builds is not None and row[2].then.avoid]


def use(
    store: VersionStore,
    name: str,
    models: Sequence[Path],
    on_row: Callable[[Compared], None],
    *,
    for_model: Path | None = None,
) -> None:
    """Compare again, then use a version from the next start of a runner on, for all models or for one.

    `shipped` is the version that came with the program and is used without a comparison.
    Raises: EngineVersionRefused: it is not installed or fails; what was used stays in use.
    """
    if name != SHIPPED:
        compare(store, name, (for_model,) if for_model else models, on_row)
    store.use(None if name == SHIPPED else name, str(for_model) if for_model else None)


def verify(store: VersionStore, models: Sequence[Path], on_row: Callable[[Compared], None]) -> None:
    """Compare the version in use and roll it back if it fails. Raises: EngineVersionRolledBack: it failed."""
    name = store.chosen()
    if name is None:
        return
    try:
        compare(store, name, models, on_row)
    except EngineVersionRefused as error:
        before = store.rollback()
        raise EngineVersionRolledBack(error.reason, before or SHIPPED) from error


def compare(store: VersionStore, name: str, models: Sequence[Path], on_row: Callable[[Compared], None]) -> None:
    """Check a version's structs, loading and numbers in child processes. Raises: EngineVersionRefused."""
    store.package(name)
    with tempfile.TemporaryDirectory(prefix="tessera-engine-") as work:
        for number, model in enumerate(models):
            settings = msgspec.json.encode(LoadSettings(path=str(model))).decode()
            reference = str(Path(work) / f"{number}.msgpack")
            _answer(child_command("engine.runner.llama.reference_child", settings, reference), SHIPPED)
            answer = _answer(child_command("engine.runner.llama.version_check", settings, reference), name)
            on_row(Compared(model=str(model), check=msgspec.convert(answer, learned(DeviceCheck))))


def _answer(argv: Sequence[str], version: str) -> object:
    outcome = run_child(argv, TIMEOUT_S, {VARIABLE: version})
    if outcome.answer is None:
        raise EngineVersionRefused(outcome.reason)
    return outcome.answer
