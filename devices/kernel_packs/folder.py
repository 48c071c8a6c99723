"""Where packs lie, and the libraries of those in use."""

from pathlib import Path
from typing import Final

from devices.backends.libraries import built_libraries
from devices.environment import user_folder
from devices.kernel_packs.abi import headers_hash
from devices.kernel_packs.store import PackStore
from devices.llama_cpp_versions.folder import chosen_version, package_folder

# Where installers/build.py puts packs: beside the program's packages. A source tree has no such folder.
SHIPPED: Final = Path(__file__).resolve().parents[2] / "kernels"


def packs_folder() -> Path:
    """Where the user's lie."""
    return user_folder("kernels", "TESSERA_KERNELS")


def installed_libraries(folder: Path | None) -> dict[str, tuple[Path, ...]]:
    """Backend name → its libraries: those in llama.cpp's `folder`, with packs in the place of shipped ones."""
    return built_libraries(folder) | active_libraries()


def active_libraries() -> dict[str, tuple[Path, ...]]:
    """Backend name → libraries of the packs in use: the user's, else those an installed program brings along.

    Reads a small file for each pack. With another version of llama-cpp-python than the program's own, packs built
    from other headers than that version's rest: their plugins would read foreign structs.
    """
    found: dict[str, tuple[Path, ...]] = {}
    other = chosen_version() is not None
    headers = _headers() if other else ""
    for folder in sorted(SHIPPED.iterdir()) if SHIPPED.is_dir() and not other else ():
        found |= built_libraries(folder)
    for pack in PackStore(packs_folder()).active():
        if not other or pack.manifest.headers == headers:
            found |= built_libraries(pack.folder)
    return found


def _headers() -> str:
    package = package_folder()
    return headers_hash(package / "include") if package is not None else ""
