"""Bundled kernel packs: installed when a device is found that can use them.

`<packs>/<name>/tried.json` stores the last failed attempt, so that the next start does not repeat it while the
machine and its drivers are unchanged.
"""

import hashlib
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from devices.atomic_file import write_atomically
from devices.backends.libraries import BACKENDS, DRIVER_MARKS, Backend, file_facts
from devices.errors import PackRefused
from devices.kernel_packs.folder import installed_headers, packs_folder
from devices.kernel_packs.install import install
from devices.kernel_packs.manifest import this_platform
from devices.kernel_packs.store import PackStore
from devices.msgspec_lock import learned
from devices.types import Machine

ASSETS: Final = Path(__file__).resolve().parents[2] / "assets" / "kernels"
TRIED: Final = "tried.json"
# With one of these set, a backend also offers software devices, which no inventory lists.
SOFTWARE_DEVICES: Final = {"vulkan": "GGML_VK_VISIBLE_DEVICES"}
RENDER_NODES: Final = Path("/dev/dri")
# States in which no backend can open the device, whatever its kernels.
_CLOSED: Final = frozenset({"driver_missing", "no_permission", "failed"})

_log = logging.getLogger(__name__)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt to install: `reason`, and `facts`, a hash of what it depended on."""

    facts: str
    reason: str


def bundled_pack(backend: str, folder: Path = ASSETS, platform: str | None = None) -> Path | None:
    """The bundled archive for `platform` (None: this one); None if there is none."""
    archives = sorted(folder.glob(f"{backend}-{platform or this_platform()}-*.tar.xz"))
    return archives[-1] if archives else None


def pack_named(name: str) -> Path | None:
    """The bundled archive of the pack with this name, such as vulkan-linux-x86_64."""
    archives = (
        sorted(ASSETS.glob(f"{name}-[0-9]*.tar.xz")) if name.replace("-", "").replace("_", "").isalnum() else []
    )
    return archives[-1] if archives else None


def provide(machine: Machine, store: PackStore | None = None, assets: Path = ASSETS) -> None:
    """Install the bundled packs that a device of this machine can use. Never raises.

    Skips a pack that the user removed or rolled back. Keeps a pack of the same ggml that is already in use.
    """
    store = store or PackStore(packs_folder())
    for backend in BACKENDS:
        archive = bundled_pack(backend.name, assets)
        if archive is None or not _is_wanted(backend, machine):
            continue
        name = f"{backend.name}-{this_platform()}"
        facts = _fingerprint(machine, archive)
        if (
            store.rests(name)
            or _in_use(store, name)
            or ((last := failed_attempt(name, store)) and last.facts == facts)
        ):
            continue
        reason = ""
        try:
            install(store, archive, needs_device=True)
        except PackRefused as error:
            reason = error.reason
        except OSError as error:
            reason = f"it could not be stored: {error.strerror or error}"
        _note(store.folder / name / TRIED, Attempt(facts=facts, reason=reason) if reason else None)
        _log.info("kernel pack %s: %s", name, reason or "installed")


def failed_attempt(name: str, store: PackStore | None = None) -> Attempt | None:
    """The last attempt to install the bundled pack, if it failed."""
    path = (store or PackStore(packs_folder())).folder / name / TRIED
    try:
        return msgspec.json.decode(path.read_bytes(), type=learned(Attempt))
    except (OSError, ValueError, RecursionError):
        return None


def _is_wanted(backend: Backend, machine: Machine) -> bool:
    if os.environ.get(SOFTWARE_DEVICES.get(backend.name, "")):
        return True
    # A container may have the node of a device without its entries in /sys.
    if backend.name == "vulkan" and any(RENDER_NODES.glob("renderD*")):
        return True
    return any(
        device.kind in backend.kinds
        and (not backend.vendors or device.vendor in backend.vendors)
        and device.state not in _CLOSED
        for device in machine.devices
    )


def _in_use(store: PackStore, name: str) -> bool:
    """Whether a build of the pack is in use and fits the installed ggml."""
    headers = installed_headers()
    return any(p.manifest.name == name and headers in {"", p.manifest.headers} for p in store.active())


def _fingerprint(machine: Machine, archive: Path) -> str:
    """Hash of everything that decides whether the archive can be installed: archive, devices, drivers."""
    facts: list[object] = [machine.kernel, installed_headers()]
    facts += [(d.id, d.state, d.driver, d.driver_version) for d in machine.devices]
    facts += file_facts((archive, *DRIVER_MARKS, RENDER_NODES))
    facts += sorted((k, v) for k, v in os.environ.items() if k.startswith(("GGML_VK", "VK_")))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _note(path: Path, attempt: Attempt | None) -> None:
    try:
        if attempt is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, msgspec.json.encode(attempt))
    except OSError as error:
        _log.warning("could not write %s: %s", path, error)
