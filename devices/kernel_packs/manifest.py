"""A pack's manifest: its platform and ggml version, its files, and its requirements at run time."""

import hashlib
import platform
import re
import sys
from pathlib import Path
from typing import Final

import msgspec

from devices.errors import PackRefused
from devices.msgspec_lock import learned

FORMAT: Final = 1
NAME: Final = "manifest.json"
_WORD: Final = re.compile(r"^[a-z0-9][a-z0-9_.+-]{0,63}\Z")
_FILE: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}\Z")
_SHA256: Final = re.compile(r"^[0-9a-f]{64}\Z")
MAX_MANIFEST_BYTES: Final = 1 << 20
MAX_FILE_BYTES: Final = 4 << 30


class PackFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a pack, next to the manifest. `num_bytes` and `sha256` (hex) are checked first."""

    name: str
    num_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A pack. `backend` is ggml's name (`vulkan`), `platform` such as `linux-x86_64`.

    `ggml_version` and `headers` (see abi.py) must be those of the installed libraries. `glibc` is the minimum
    version (empty: none). `needs` are libraries that the system must have, each with a text on how to get it.
    """

    format: int
    name: str
    version: str
    backend: str
    platform: str
    ggml_version: str
    headers: str
    files: tuple[PackFile, ...]
    glibc: str = ""
    needs: dict[str, str] = {}
    built: dict[str, str] = {}

    @property
    def digest(self) -> str:
        """Id of this build: 16 hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


def this_platform() -> str:
    """The platform of this machine, as named by packs."""
    systems = {"linux": "linux", "win32": "windows", "darwin": "macos"}
    machines = {"AMD64": "x86_64", "arm64": "aarch64", "ARM64": "aarch64"}
    return f"{systems.get(sys.platform, sys.platform)}-{machines.get(platform.machine(), platform.machine())}"


def parse(data: bytes) -> Manifest:
    """A well-formed manifest without paths outside its folder. Raises: PackRefused."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise PackRefused(f"its manifest has {len(data)} bytes, at most {MAX_MANIFEST_BYTES} are read")
    try:
        manifest = msgspec.json.decode(data, type=learned(Manifest))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PackRefused(f"its manifest cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise PackRefused(f"its manifest has format {manifest.format}, this program reads {FORMAT}; update Tessera")
    for label, word in (("name", manifest.name), ("version", manifest.version), ("backend", manifest.backend)):
        if not _WORD.match(word):
            raise PackRefused(f"its {label} {word[:64]!r} is not a plain word")
    names = [file.name for file in manifest.files]
    if not names or len(set(names)) != len(names) or NAME in names:
        raise PackRefused("its list of files is empty or names one twice")
    for file in manifest.files:
        if not _FILE.match(file.name) or ".." in file.name or not _SHA256.match(file.sha256):
            raise PackRefused(f"its file {file.name[:64]!r} has no plain name or no SHA-256")
        if not 0 < file.num_bytes <= MAX_FILE_BYTES:
            raise PackRefused(f"its file {file.name} has {file.num_bytes} bytes")
    return manifest


def check_files(manifest: Manifest, folder: Path) -> None:
    """Check that every file is present, complete and unchanged. Raises: PackRefused."""
    for file in manifest.files:
        path = folder / file.name
        try:
            if path.is_symlink() or path.stat().st_size != file.num_bytes:
                raise PackRefused(f"{file.name} does not have the {file.num_bytes} bytes of the manifest")
            with path.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise PackRefused(f"{file.name} cannot be read: {error.strerror}") from error
        if digest != file.sha256:
            raise PackRefused(f"{file.name} was changed: its SHA-256 is {digest[:12]}…, not {file.sha256[:12]}…")
