"""Errors of the library, the disk and the hub. Their fields hold the facts (see engine.core.errors)."""

from typing import Literal

from engine.core.errors import EnvironmentFault, InputFault
from engine.message_catalog.reasons import Reason, because

# Error messages of the operating system when there is no network. Source: getaddrinfo(3), connect(2).
_PLAIN = {
    "Name or service not known": "address_unknown",
    "Temporary failure in name resolution": "address_unknown",
    "No address associated with hostname": "address_unknown",
    "nodename nor servname provided": "address_unknown",
    "getaddrinfo failed": "address_unknown",
    "Network is unreachable": "no_network",
    "Connection refused": "nobody_answers",
    "timed out": "no_answer",
}


def _plain(reason: str) -> str | Reason:
    return next((because(kind) for sign, kind in _PLAIN.items() if sign in reason), reason)


class HubUnreachable(EnvironmentFault):
    """The hub sent no usable response. The network, a proxy or the hub itself is the cause."""

    code = "hub_unreachable"

    def __init__(self, endpoint: str, reason: str, status: int | None = None) -> None:
        host = endpoint.partition("://")[2] or endpoint
        super().__init__(because("hub_unreachable", host=host, why=_plain(reason)))
        self.endpoint = endpoint
        self.reason = reason
        self.status = status


class Offline(EnvironmentFault):
    """Offline mode is on; nothing was sent."""

    code = "offline"

    def __init__(self) -> None:
        super().__init__(because("offline"))


class RateLimited(EnvironmentFault):
    """The hub requires a wait of `retry_after_s` seconds."""

    code = "rate_limited"

    def __init__(self, endpoint: str, retry_after_s: float) -> None:
        super().__init__(because("rate_limited", endpoint=endpoint, retry_after_s=retry_after_s))
        self.endpoint = endpoint
        self.retry_after_s = retry_after_s


_ABSENT = {"repository": "no_repository", "revision of": "no_revision", "such file in": "no_such_file"}


class RepositoryNotFound(InputFault):
    """No such repository, revision or file, or it is private and the token gives no access."""

    code = "repository_not_found"

    def __init__(
        self, repo: str, what: Literal["repository", "revision of", "such file in"] = "repository"
    ) -> None:
        super().__init__(because(_ABSENT[what], repo=repo), "repo")
        self.repo = repo
        self.what = what


class GatedRepository(InputFault):
    """The repository's owner must grant access first. `has_token` is true if a token was sent."""

    code = "gated_repository"

    def __init__(self, repo: str, url: str, *, has_token: bool) -> None:
        super().__init__(because("gated" if has_token else "gated_no_token", repo=repo, url=url), "repo")
        self.repo = repo
        self.url = url
        self.has_token = has_token


class UnsafeName(InputFault):
    """A file name in the repository could lead out of the models folder; no file was opened."""

    code = "unsafe_name"

    def __init__(self, name: str) -> None:
        super().__init__(because("unsafe_name", name=name[:120]), "file")
        self.name = name[:120]


class NothingToDownload(InputFault):
    """No file in the repository matches the request; `choices` lists the available ones."""

    code = "nothing_to_download"

    def __init__(self, repo: str, wanted: str, choices: tuple[str, ...]) -> None:
        lost = because("nothing_called", repo=repo, wanted=wanted)
        if choices:
            lost = because("nothing_called_but", repo=repo, wanted=wanted, choices=choices)
        super().__init__(lost, "quantization")
        self.repo = repo
        self.wanted = wanted
        self.choices = choices


class NotEnoughDisk(EnvironmentFault):
    """Not enough disk space for a download: bytes needed, and bytes free in the models folder."""

    code = "disk_full"

    def __init__(self, path: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(because("disk_full", path=path, needed_bytes=needed_bytes, free_bytes=free_bytes))
        self.path = path
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class CannotWrite(EnvironmentFault):
    """A file of the models folder cannot be written; `reason` is the system's message, or a fact."""

    code = "cannot_write"

    def __init__(self, path: str, reason: str | Reason) -> None:
        super().__init__(because("cannot_write", path=path, why=reason))
        self.path = path
        self.reason = reason


class HashMismatch(EnvironmentFault):
    """The content does not match the expected hash. The file was moved to `quarantine` and is never listed."""

    code = "hash_mismatch"

    def __init__(self, file: str, expected: str, actual: str, quarantine: str | None) -> None:
        super().__init__(because("hash_mismatch", file=file, expected=expected, actual=actual))
        self.file = file
        self.expected = expected
        self.actual = actual
        self.quarantine = quarantine


class BadUpdate(EnvironmentFault):
    """The new version of a model cannot be read; the previous version was restored."""

    code = "bad_update"

    def __init__(self, repo: str, reason: str) -> None:
        super().__init__(because("bad_update", repo=repo, why=reason))
        self.repo = repo
        self.reason = reason


class FileChanged(EnvironmentFault):
    """The file on the hub changed during the download; the bytes of the old version were deleted."""

    code = "file_changed"

    def __init__(self, file: str) -> None:
        super().__init__(because("file_changed", file=file))
        self.file = file
