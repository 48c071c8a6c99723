"""Whether a newer version was published: one small file is asked for, nothing is replaced."""

from typing import Final

import msgspec

from devices.msgspec_lock import learned
from engine.core.version import __version__

# Where releases are announced: `latest.json` for programs, the folder itself for people.
RELEASES: Final = "https://tessera.github.io/releases/"
_TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 1 << 16


class UpdateUnknown(Exception):
    """It could not be found out; the message says why."""


class Latest(msgspec.Struct, frozen=True, kw_only=True):
    """What `latest.json` says; other fields are for later versions of this program."""

    version: str


def newer_version(releases: str) -> str | None:
    """The version told of below the address `releases` if it is newer than this one, else None.

    Nothing of this computer or user is sent. Raises: UpdateUnknown.
    """
    # The window's first picture does not wait for these: a tenth of a second.
    import httpx2  # noqa: PLC0415
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415

    address = f"{releases}latest.json"
    found = b""
    try:
        with (
            httpx2.Client(timeout=_TIMEOUT_S, headers={"User-Agent": "Tessera"}) as client,
            client.stream("GET", address) as answer,
        ):
            answer.raise_for_status()
            for chunk in answer.iter_bytes():
                found += chunk
                if len(found) > MAX_BYTES:
                    raise UpdateUnknown(f"{address} is larger than {MAX_BYTES} bytes")
        published = Version(msgspec.json.decode(found, type=learned(Latest)).version)
    except (httpx2.HTTPError, InvalidVersion, ValueError, RecursionError) as error:
        raise UpdateUnknown(f"{address}: {error}") from error
    return str(published) if published > Version(__version__) else None
