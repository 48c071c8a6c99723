"""Folder of the packs, and the libraries of those in use."""

from pathlib import Path

from devices.backends.libraries import built_libraries
from devices.environment import user_folder
from devices.kernel_packs.abi import headers_hash
from devices.kernel_packs.store import PackStore
from devices.llama_cpp_versions.folder import chosen_version, package_folder


def packs_folder() -> Path:
    """Folder of the user's packs."""
    return user_folder("kernels", "TESSERA_KERNELS")


def installed_libraries(folder: Path | None) -> dict[str, tuple[Path, ...]]:
    """Backend name → its libraries: those in llama.cpp's `folder`, with packs replacing shipped ones."""
    return built_libraries(folder) | active_libraries()


def active_libraries() -> dict[str, tuple[Path, ...]]:
    """Backend name → libraries of the packs in use.

    Reads a small file per pack. Packs built with other headers than those of the llama-cpp-python in use stay
    inactive: their plugins would misread its structs.
    """
    libraries: dict[str, tuple[Path, ...]] = {}
    packs = PackStore(packs_folder()).active()
    headers = installed_headers() if packs else ""
    for pack in packs:
        if pack.manifest.headers == headers or (not headers and chosen_version() is None):
            libraries |= built_libraries(pack.folder)
    return libraries


def installed_headers() -> str:
    """The hash of the headers of the llama-cpp-python in use; empty if it has none."""
    package = package_folder()
    return headers_hash(package / "include") if package is not None else ""
