"""Check whether a newer version was published: downloads one small file and replaces nothing."""

from typing import Final

import msgspec

from devices.msgspec_lock import learned
from engine.core.version import __version__

# Location of release announcements: `latest.json` for programs, the folder itself for people.
RELEASES: Final = "https://tessera.github.io/releases/"
_TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 1 << 16


class UpdateUnknown(Exception):
    """The check failed; the message is the reason."""


class Latest(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `latest.json`; other fields are reserved for later versions."""

    version: str


def newer_version(releases: str) -> str | None:
    """Published version at the URL `releases` if it is newer than this one, else None.

    Sends no data about this computer or user. Raises: UpdateUnknown.
    """
    # Imported here because it takes 0.1 s, which would delay the first paint of the window.
    import httpx2
    from packaging.version import InvalidVersion, Version

    address = f"{releases}latest.json"
    # Read as it is sent: a small compressed response may expand to gigabytes.
    headers = {"User-Agent": "Tessera", "Accept-Encoding": "identity"}
    content = b""
    try:
        with (
            httpx2.Client(timeout=_TIMEOUT_S, headers=headers) as client,
            client.stream("GET", address) as answer,
        ):
            answer.raise_for_status()
            for chunk in answer.iter_raw():
                content += chunk
                if len(content) > MAX_BYTES:
                    raise UpdateUnknown(f"{address} is larger than {MAX_BYTES} bytes")
        published = Version(msgspec.json.decode(content, type=learned(Latest)).version)
    except (httpx2.HTTPError, InvalidVersion, ValueError, RecursionError) as error:
        raise UpdateUnknown(f"{address}: {error}") from error
    return str(published) if published > Version(__version__) else None
