"""Download kernel packs from a URL: a signed index, and the archive that matches this machine.

The URL holds `index.json` and its minisign signature `index.json.minisig`. Nothing is downloaded unless the user
configured a URL and the public keys that may sign the index.
"""

import base64
import binascii
import hashlib
from pathlib import Path
from typing import Final

import httpx2
import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from app.settings import Settings
from devices.atomic_file import unfinished
from devices.backends.libraries import library_folder
from devices.errors import PackRefused
from devices.kernel_packs.abi import installed_abi
from devices.kernel_packs.manifest import this_platform
from devices.msgspec_lock import learned
from engine.core.paths import user_paths

_TIMEOUT: Final = httpx2.Timeout(10.0)
MAX_INDEX_BYTES: Final = 4 << 20
MAX_PACK_BYTES: Final = 2 << 30
# minisign: two bytes for the algorithm, eight for the key id. Source: the minisign signature format.
_KEY_BYTES: Final = 42
_SIGNATURE_BYTES: Final = 74
_CHUNK: Final = 1 << 18


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One archive of the index: its pack and platform, file name, size and SHA-256 (hex)."""

    name: str
    platform: str
    ggml_version: str
    file: str
    num_bytes: int
    sha256: str


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """All packs that the index lists."""

    format: int
    packs: tuple[IndexEntry, ...]


def check_signature(data: bytes, signature: str, keys: list[str], what: str = "the index") -> str:
    """Verify a minisign signature against the public `keys`; return its trusted comment. Raises: PackRefused.

    what: the signed file, as errors name it.
    """
    lines = signature.splitlines()
    try:
        signed = base64.b64decode(lines[1], validate=True)
        comment, seal = lines[2].removeprefix("trusted comment: "), base64.b64decode(lines[3], validate=True)
    except (IndexError, binascii.Error) as error:
        raise PackRefused(f"the signature of {what} cannot be read") from error
    if len(signed) != _SIGNATURE_BYTES or signed[:2] not in {b"ED", b"Ed"}:
        raise PackRefused(f"the signature of {what} has an unknown form")
    message = hashlib.blake2b(data).digest() if signed[:2] == b"ED" else data
    for key in keys:
        try:
            public = base64.b64decode(key, validate=True)
        except binascii.Error as error:
            raise PackRefused(f"the key {key[:16]!r} in kernels.keys is not base64") from error
        if len(public) != _KEY_BYTES:
            raise PackRefused(f"the key {key[:16]!r} in kernels.keys is not a minisign public key")
        if public[2:10] != signed[2:10]:
            continue
        verifier = Ed25519PublicKey.from_public_bytes(public[10:])
        try:
            verifier.verify(signed[10:], message)
            verifier.verify(seal, signed[10:] + comment.encode())
        except InvalidSignature as error:
            raise PackRefused(f"{what} was changed: its signature does not fit") from error
        return comment
    raise PackRefused(f"{what} is signed by none of the keys in kernels.keys")


def fetch(name: str, settings: Settings) -> Path:
    """Download pack `name` for this machine and verify it; return its path in the cache. Raises: PackRefused."""
    address, keys = settings.text("kernels.address").rstrip("/"), settings.text("kernels.keys").split()
    if settings.flag("network.offline"):
        raise PackRefused("Tessera is set to work offline (network.offline); give a file instead")
    if not address or not keys:
        raise PackRefused(
            f"there is no file {name!r}, and kernels.address and kernels.keys are not both set "
            "(`tessera settings set`), so it cannot be downloaded"
        )
    folder = library_folder()
    abi = installed_abi(folder) if folder else None
    # Responses are read as they are sent: a small compressed one may expand to gigabytes.
    headers = {"Accept-Encoding": "identity"}
    with httpx2.Client(timeout=_TIMEOUT, follow_redirects=True, headers=headers) as client:
        data = _get(client, f"{address}/index.json", MAX_INDEX_BYTES)
        check_signature(data, _get(client, f"{address}/index.json.minisig", MAX_INDEX_BYTES).decode(), keys)
        try:
            index = msgspec.json.decode(data, type=learned(Index))
        except (ValueError, RecursionError) as error:
            raise PackRefused(f"the index cannot be read: {error}") from error
        here = [p for p in index.packs if p.name == name and p.platform == this_platform()]
        fitting = [p for p in here if abi is None or p.ggml_version == abi.ggml_version]
        if not fitting:
            versions = ", ".join(sorted({p.ggml_version for p in here})) or "none for this platform"
            raise PackRefused(f"the address has no {name} for the installed ggml; it has: {versions}")
        return _archive(client, address, fitting[0])


def _archive(client: httpx2.Client, address: str, entry: IndexEntry) -> Path:
    if Path(entry.file).name != entry.file or not 0 < entry.num_bytes <= MAX_PACK_BYTES:
        raise PackRefused(f"the index names a file {entry.file[:64]!r} of {entry.num_bytes} bytes")
    target = user_paths().cache / "packs" / f"{entry.sha256[:16]}-{entry.file}"
    if target.exists() and hashlib.sha256(target.read_bytes()).hexdigest() == entry.sha256:
        return target
    digest, got = hashlib.sha256(), 0
    with unfinished(target) as partial:
        try:
            with partial.open("wb") as file, client.stream("GET", f"{address}/{entry.file}") as answer:
                answer.raise_for_status()
                for chunk in answer.iter_raw(_CHUNK):
                    got += len(chunk)
                    if got > entry.num_bytes:
                        break
                    digest.update(chunk)
                    file.write(chunk)
        except httpx2.HTTPError as error:
            raise PackRefused(f"{entry.file} could not be downloaded: {error}") from error
        if got != entry.num_bytes or digest.hexdigest() != entry.sha256:
            raise PackRefused(f"{entry.file} is not what the index promised ({got} of {entry.num_bytes} bytes)")
        partial.replace(target)
    return target


def _get(client: httpx2.Client, url: str, most: int) -> bytes:
    try:
        with client.stream("GET", url) as answer:
            answer.raise_for_status()
            content = b""
            for chunk in answer.iter_raw(_CHUNK):
                content += chunk
                if len(content) > most:
                    raise PackRefused(f"{url} is larger than {most} bytes")
    except httpx2.HTTPError as error:
        raise PackRefused(f"{url} could not be downloaded: {error}") from error
    return content
