"""Identifies the installed ggml: a plugin built for another version would misread its structs."""

import ctypes
import hashlib
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from devices.backends.libraries import ggml_library
from devices.backends.symbols import ggml_functions
from devices.child_command import answer_with
from devices.errors import PackRefused
from devices.kernel_packs.manifest import Manifest, this_platform

# Headers that a plugin is compiled with; llama.cpp installs them next to the libraries.
HEADERS: Final = ("ggml.h", "ggml-backend.h", "ggml-alloc.h", "ggml-cpu.h")
TIMEOUT_S: Final = 15.0


class Abi(msgspec.Struct, frozen=True, kw_only=True):
    """ggml's version, and the hash of its headers (empty if they are not installed)."""

    ggml_version: str
    headers: str


def headers_hash(folder: Path) -> str:
    """SHA-256 over ggml's public headers in `folder`; empty if one is missing."""
    digest = hashlib.sha256()
    for name in HEADERS:
        try:
            digest.update(name.encode() + b"\0" + (folder / name).read_bytes())
        except OSError:
            return ""
    return digest.hexdigest()


def installed_abi(libraries: Path) -> Abi:
    """The ABI of the libraries in this folder, read in a child. Raises: PackRefused: they do not load."""
    from devices.child import run_child
    from devices.child_command import child_command

    outcome = run_child(child_command("devices.kernel_packs.abi", str(libraries)), TIMEOUT_S)
    if outcome.answer is None or not outcome.answer.get("ggml_version"):
        raise PackRefused(f"the installed llama.cpp libraries do not load: {outcome.reason}")
    return Abi(ggml_version=str(outcome.answer["ggml_version"]), headers=headers_hash(libraries.parent / "include"))


def check_fits(manifest: Manifest, abi: Abi) -> None:
    """Check that the pack is for this platform and this ggml. Raises: PackRefused."""
    if manifest.platform != this_platform():
        raise PackRefused(f"it is for {manifest.platform}, this is {this_platform()}")
    if manifest.ggml_version != abi.ggml_version:
        raise PackRefused(
            f"it is for ggml {manifest.ggml_version}, ggml {abi.ggml_version} is installed; get the one for it"
        )
    if abi.headers and manifest.headers != abi.headers:
        raise PackRefused(
            f"it was built from other headers of ggml {abi.ggml_version} than those installed; "
            "get the pack that belongs to this version of Tessera"
        )
    needed, here = _numbers(manifest.glibc), _numbers(glibc_version())
    if needed and here and here < needed:
        raise PackRefused(f"it needs glibc {manifest.glibc}, this system has {glibc_version()}")


def glibc_version() -> str:
    """Version of the C library; empty if it is not glibc."""
    if sys.platform != "linux":
        return ""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION").split()[-1]  # type: ignore[union-attr]
    except (ValueError, OSError, AttributeError, IndexError):
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _version_in(folder: Path) -> dict[str, str]:
    ggml = ggml_functions(ctypes.CDLL(str(ggml_library(folder))), folder)
    ggml.ggml_version.restype = ctypes.c_char_p
    return {"ggml_version": (ggml.ggml_version() or b"").decode()}


def main() -> int:
    """Print the version of the ggml in a folder."""
    return answer_with(lambda: _version_in(Path(sys.argv[1])), OSError, AttributeError)


if __name__ == "__main__":
    sys.exit(main())
