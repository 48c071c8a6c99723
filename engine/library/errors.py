"""What can go wrong between this library, the disk and a hub; facts as fields (see engine.core.errors)."""

from typing import Literal

from engine.core.errors import EnvironmentFault, InputFault
from engine.message_catalog.reasons import Reason, because

# What the system says where there is no network. Source: getaddrinfo(3), connect(2).
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
    """No answer, or none that helps, from the hub: the network, a proxy, or the hub itself is the reason."""

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
    """The hub asks to wait `retry_after_s` seconds."""

    code = "rate_limited"

    def __init__(self, endpoint: str, retry_after_s: float) -> None:
        super().__init__(because("rate_limited", endpoint=endpoint, retry_after_s=retry_after_s))
        self.endpoint = endpoint
        self.retry_after_s = retry_after_s


_ABSENT = {"repository": "no_repository", "revision of": "no_revision", "such file in": "no_such_file"}


class RepositoryNotFound(InputFault):
    """No such repository, revision or file (or it is private and the token does not open it)."""

    code = "repository_not_found"

    def __init__(
        self, repo: str, what: Literal["repository", "revision of", "such file in"] = "repository"
    ) -> None:
        super().__init__(because(_ABSENT[what], repo=repo), "repo")
        self.repo = repo
        self.what = what


class GatedRepository(InputFault):
    """Its owner must grant access first; `has_token` says whether a token was sent at all."""

    code = "gated_repository"

    def __init__(self, repo: str, url: str, *, has_token: bool) -> None:
        super().__init__(because("gated" if has_token else "gated_no_token", repo=repo, url=url), "repo")
        self.repo = repo
        self.url = url
        self.has_token = has_token


class UnsafeName(InputFault):
    """A repository names a file in a way that could lead out of the models folder; nothing was opened."""

    code = "unsafe_name"

    def __init__(self, name: str) -> None:
        super().__init__(because("unsafe_name", name=name[:120]), "file")
        self.name = name[:120]


class NothingToDownload(InputFault):
    """The repository has no file that fits the request; `choices` are what it offers."""

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
    """A download would not fit, or did not: bytes still needed and free where models are kept."""

    code = "disk_full"

    def __init__(self, path: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(because("disk_full", path=path, needed_bytes=needed_bytes, free_bytes=free_bytes))
        self.path = path
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class CannotWrite(EnvironmentFault):
    """The system refuses to write where models are kept; `reason` is its own word for why."""

    code = "cannot_write"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(because("cannot_write", path=path, why=reason))
        self.path = path
        self.reason = reason


class HashMismatch(EnvironmentFault):
    """The content is not what was promised. The file was moved to `quarantine` and is never listed."""

    code = "hash_mismatch"

    def __init__(self, file: str, expected: str, actual: str, quarantine: str | None) -> None:
        super().__init__(because("hash_mismatch", file=file, expected=expected, actual=actual))
        self.file = file
        self.expected = expected
        self.actual = actual
        self.quarantine = quarantine


class BadUpdate(EnvironmentFault):
    """The newer version of a model cannot be read; the one before it is back in its place."""

    code = "bad_update"

    def __init__(self, repo: str, reason: str) -> None:
        super().__init__(because("bad_update", repo=repo, why=reason))
        self.repo = repo
        self.reason = reason


class FileChanged(EnvironmentFault):
    """The hub's file is another one than a moment ago; what was fetched of the old one was dropped."""

    code = "file_changed"

    def __init__(self, file: str) -> None:
        super().__init__(because("file_changed", file=file))
        self.file = file
