"""What can go wrong between this library, the disk and a hub; facts as fields (see engine.errors)."""

from engine.errors import EnvironmentFault, InputFault

# What the system says where there is no network, in words. Source: getaddrinfo(3), connect(2).
_PLAIN = {
    "Name or service not known": "its address is not known here",
    "Temporary failure in name resolution": "its address is not known here",
    "No address associated with hostname": "its address is not known here",
    "nodename nor servname provided": "its address is not known here",
    "getaddrinfo failed": "its address is not known here",
    "Network is unreachable": "there is no network",
    "Connection refused": "nobody answers there",
    "timed out": "it does not answer",
}


def _plain(reason: str) -> str:
    return next((words for sign, words in _PLAIN.items() if sign in reason), reason)


class HubUnreachable(EnvironmentFault):
    """No answer, or none that helps, from the hub: the network, a proxy, or the hub itself is the reason."""

    code = "hub_unreachable"

    def __init__(self, endpoint: str, reason: str, status: int | None = None) -> None:
        host = endpoint.partition("://")[2] or endpoint
        super().__init__(f"{host} cannot be reached ({_plain(reason)}). Check the network connection.")
        self.endpoint = endpoint
        self.reason = reason
        self.status = status


class Offline(EnvironmentFault):
    """Offline mode is on; nothing was sent."""

    code = "offline"

    def __init__(self) -> None:
        super().__init__("offline mode is on (network.offline or HF_HUB_OFFLINE); end it to search or download")


class RateLimited(EnvironmentFault):
    """The hub asks to wait `retry_after_s` seconds."""

    code = "rate_limited"

    def __init__(self, endpoint: str, retry_after_s: float) -> None:
        super().__init__(f"{endpoint} asks to wait {retry_after_s:.0f} s before the next request")
        self.endpoint = endpoint
        self.retry_after_s = retry_after_s


class RepositoryNotFound(InputFault):
    """No such repository, revision or file (or it is private and the token does not open it)."""

    code = "repository_not_found"

    def __init__(self, repo: str, what: str = "repository") -> None:
        super().__init__(f"The hub has no {what} {repo!r}, or it is private.", "repo")
        self.repo = repo
        self.what = what


class GatedRepository(InputFault):
    """Its owner must grant access first; `has_token` says whether a token was sent at all."""

    code = "gated_repository"

    def __init__(self, repo: str, url: str, *, has_token: bool) -> None:
        need = "accept its terms" if has_token else "accept its terms and set a token (HF_TOKEN or the settings)"
        super().__init__(f"{repo} is gated: {need} at {url}", "repo")
        self.repo = repo
        self.url = url
        self.has_token = has_token


class UnsafeName(InputFault):
    """A repository names a file in a way that could lead out of the models folder; nothing was opened."""

    code = "unsafe_name"

    def __init__(self, name: str) -> None:
        super().__init__(f"the file name {name[:120]!r} is not safe on disk", "file")
        self.name = name[:120]


class NothingToDownload(InputFault):
    """The repository has no file that fits the request; `choices` are what it offers."""

    code = "nothing_to_download"

    def __init__(self, repo: str, wanted: str, choices: tuple[str, ...]) -> None:
        offers = f" It offers: {', '.join(choices)}." if choices else " It has no GGUF or safetensors files."
        super().__init__(f"{repo} has nothing called {wanted!r}.{offers}", "quantization")
        self.repo = repo
        self.wanted = wanted
        self.choices = choices


class NotEnoughDisk(EnvironmentFault):
    """A download would not fit, or did not: bytes still needed and free where models are kept."""

    code = "disk_full"

    def __init__(self, path: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{needed_bytes} bytes needed in {path}, {free_bytes} free")
        self.path = path
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class CannotWrite(EnvironmentFault):
    """The system refuses to write where models are kept; `reason` is its own word for why."""

    code = "cannot_write"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be written: {reason}")
        self.path = path
        self.reason = reason


class HashMismatch(EnvironmentFault):
    """The content is not what was promised. The file was moved to `quarantine` and is never listed."""

    code = "hash_mismatch"

    def __init__(self, file: str, expected: str, actual: str, quarantine: str | None) -> None:
        super().__init__(f"{file}: expected sha256 {expected}, found {actual}")
        self.file = file
        self.expected = expected
        self.actual = actual
        self.quarantine = quarantine


class BadUpdate(EnvironmentFault):
    """The newer version of a model cannot be read; the one before it is back in its place."""

    code = "bad_update"

    def __init__(self, repo: str, reason: str) -> None:
        super().__init__(f"the newer version of {repo} cannot be used ({reason}); the one before it was kept")
        self.repo = repo
        self.reason = reason


class FileChanged(EnvironmentFault):
    """The hub's file is another one than a moment ago; what was fetched of the old one was dropped."""

    code = "file_changed"

    def __init__(self, file: str) -> None:
        super().__init__(f"{file} changed on the hub while it was fetched; start the download again")
        self.file = file
