"""Installs a pack: compares it with the installed ggml, tests it in a child, and only then uses it."""

from pathlib import Path
from typing import Final

import msgspec

from devices.backends.backend_probe import trial_command
from devices.backends.libraries import built_libraries, library_folder
from devices.child import run_child
from devices.errors import PackRefused
from devices.kernel_packs import manifest as manifests
from devices.kernel_packs.abi import check_fits, installed_abi
from devices.kernel_packs.store import Pack, PackStore
from devices.msgspec_lock import learned
from devices.types import BackendDevice

# A driver's first start compiles shaders; on Windows antivirus reads the library first.
TIMEOUT_S: Final = 90.0


class PackTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Result of loading a pack's library in a child: the devices it can use here, and its version."""

    devices: tuple[BackendDevice, ...]
    version: str
    seconds: float


def install(store: PackStore, source: Path, *, needs_device: bool = False) -> tuple[Pack, PackTrial]:
    """Add the pack in `source` (a folder or an archive) and use it from the next load on.

    A pack for another ggml, or whose library does not load, is removed again and the pack in use stays; with
    `needs_device` also a pack that finds no device here. Raises: PackRefused, OSError.
    """
    libraries = _libraries()
    abi = installed_abi(libraries)
    pack = store.add(source)
    try:
        check_fits(pack.manifest, abi)
        trial = try_pack(pack)
        if needs_device and not trial.devices:
            raise PackRefused("its library loads but finds no device here")  # noqa: TRY301 - dropped below
    except PackRefused:
        store.drop(pack)
        raise
    store.use(pack)
    return pack, trial


def verify(pack: Pack) -> PackTrial:
    """Check the files, the ABI and the library of an installed pack again. Raises: PackRefused."""
    manifests.check_files(pack.manifest, pack.folder)
    check_fits(pack.manifest, installed_abi(_libraries()))
    return try_pack(pack)


def try_pack(pack: Pack) -> PackTrial:
    """Load the pack's library in a child and open its devices. Raises: PackRefused: it does not load."""
    libraries = built_libraries(pack.folder)
    if not libraries:
        raise PackRefused("it contains no ggml library (libggml-NAME.so, ggml-NAME.dll)")
    name, paths = next(iter(libraries.items()))
    if name != pack.manifest.backend:
        raise PackRefused(f"its library is {name}'s, its manifest says {pack.manifest.backend}")
    argv = trial_command(name, _libraries(), paths)
    outcome = run_child(argv, TIMEOUT_S)
    if outcome.answer is None:
        needs = " ".join(f"It needs {need}: {way}." for need, way in pack.manifest.needs.items())
        raise PackRefused(f"its library does not load here: {outcome.reason}. {needs}".strip())
    try:
        devices = msgspec.convert(outcome.answer.get("devices", []), learned(tuple[BackendDevice, ...]))
    except msgspec.ValidationError as error:
        raise PackRefused(f"what its library lists cannot be read: {error}") from error
    return PackTrial(devices=devices, version=str(outcome.answer.get("version", "")), seconds=outcome.seconds)


def _libraries() -> Path:
    folder = library_folder()
    if folder is None or not folder.is_dir():
        raise PackRefused("llama.cpp is not installed here; run start.py first")
    return folder
