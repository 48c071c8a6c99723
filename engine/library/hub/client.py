"""Hub client: converts the hub's responses to Tessera's records and errors. It uses huggingface-hub's session."""

import json
import logging
import os
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, unquote

# Read when huggingface_hub is imported: no telemetry, no update check, and no implicit token.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_UPDATE_CHECK"] = "1"
os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"  # noqa: S105 a switch

import httpx2
import huggingface_hub
import msgspec
from huggingface_hub import errors as hf_errors
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # its re-exports are not declared
    HFValidationError,
    build_hf_headers,
    get_session,
    hf_raise_for_status,
    validate_repo_id,
)

from devices.msgspec_lock import learned
from engine.core.errors import InputFault
from engine.core.json_bounds import JsonSizeCounter
from engine.library.errors import GatedRepository, HubUnreachable, Offline, RateLimited, RepositoryNotFound
from engine.library.hub.repository import is_safe_name
from engine.library.hub.types import RepoFile, RepoHit, Repository
from engine.message_catalog.reasons import because

_DEFAULT_ENDPOINT = "https://huggingface.co"
_TIMEOUT = httpx2.Timeout(10.0)
_VERSION = "1"
T = TypeVar("T", bound=msgspec.Struct)
_MAX_FILES = 20_000
_MAX_FILE_BYTES = 1 << 50
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SHA1: Final = re.compile(r"[0-9a-f]{40}")
# Limits of a response. A listing of 100,000 files takes 33 MB.
_MAX_ANSWER_BYTES: Final = 64 << 20
_MAX_OBJECTS, _MAX_VALUES = 500_000, 2_000_000
_MAX_PAGE_BYTES: Final = 1 << 20  # maximum bytes read of an error or a redirect
# A slower response is aborted after some time: one byte every nine seconds could otherwise take years.
_LEAST_BYTES_PER_S: Final = 4096
_SLOW_AFTER_S: Final = 30.0
_ABSENT: Final[dict[type[Exception], Literal["repository", "revision of", "such file in"]]] = {
    hf_errors.RevisionNotFoundError: "revision of",
    hf_errors.RepositoryNotFoundError: "repository",
    hf_errors.EntryNotFoundError: "such file in",
}
_DECODED: Final = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd"})
_MAX_RETRY_AFTER_S: Final = 86_400.0
_model_info: Callable[..., huggingface_hub.ModelInfo] = huggingface_hub.ModelInfo  # its __init__ is unannotated
_OFFLINE_WORDS = frozenset({"1", "on", "yes", "true"})


class HubClient:
    """One hub. `endpoint` defaults to HF_ENDPOINT, else huggingface.co; `token` defaults to `hub_token`."""

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        address = (endpoint or os.environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")
        scheme, colon, location = address.partition("://")
        login, at, host = location.partition("/")[0].rpartition("@")
        # Messages, notes and answers contain the endpoint: a mirror's user and password are not part of it.
        self.endpoint = f"{scheme}{colon}{host}{location[len(login + at + host) :]}" if at else address
        self._login = unquote(login)
        self._token: str | bool | None = token

    def __repr__(self) -> str:
        return f"HubClient({self.endpoint!r})"  # the token must not appear in logs

    @property
    def token(self) -> str | bool:
        """The token to send, or False for none; read once, on first use."""
        if self._token is None:
            self._token = hub_token() or False
        return self._token

    def headers(self) -> dict[str, str]:
        """Headers for requests to the hub; on a redirect to another host the authorization is dropped."""
        headers: dict[str, str] = build_hf_headers(
            token=self.token, library_name="tessera", library_version=_VERSION
        )
        if self._login and not self.token:
            headers["authorization"] = f"Basic {b64encode(self._login.encode()).decode()}"
        return {**headers, "Accept-Encoding": "identity"}

    def file_url(self, repo: str, revision: str, file: str) -> str:
        """URL that resolves a file; the response is usually a redirect to storage."""
        return str(huggingface_hub.hf_hub_url(repo, file, revision=revision, endpoint=self.endpoint))

    def search(
        self,
        text: str = "",
        *,
        task: str | None = None,
        architecture: str | None = None,
        parameters: str | None = None,
        base: str | None = None,
        gguf_only: bool = True,
        sort: Literal["trending", "downloads", "likes", "lastModified"] = "trending",
        limit: int = 20,
    ) -> tuple[RepoHit, ...]:
        """Repositories that match. `parameters` uses the hub's syntax (`min:3B,max:9B`).

        `base`: only those that name this repository as the one they were quantized from.

        Raises: HubUnreachable, Offline, RateLimited.
        """
        quantized = f"base_model:quantized:{base}" if base else None
        query: dict[str, Any] = {
            "search": text,
            "filter": [tag for tag in ("gguf" if gguf_only else None, architecture, quantized) if tag],
            "pipeline_tag": task,
            "num_parameters": parameters,
            "sort": "trendingScore" if sort == "trending" else sort,
            "limit": limit,
            "expand": ["gated", "downloads", "likes", "lastModified", "pipeline_tag", "gguf", "tags"],
        }
        # HfApi.list_models sends the same request, but retries a failure for 30 s before it reports it.
        url: str | None = f"{self.endpoint}/api/models"
        params: dict[str, Any] | None = {key: value for key, value in query.items() if value}
        hits: list[RepoHit] = []
        with self._translated(text):
            while url and len(hits) < limit:
                response, items = self._answer(url, params)
                if not items:  # pages without end
                    break
                hits += [_hit(_model_info(**item)) for item in items]
                url, params = response.links.get("next", {}).get("url"), None
                if url and not url.startswith(f"{self.endpoint}/"):
                    break  # another host must not get the token
        return tuple(hits[:limit])

    def repository(self, repo: str, revision: str | None = None) -> Repository:
        """Files of a repository at one commit, with size and expected hash of each.

        Raises: RepositoryNotFound, GatedRepository, HubUnreachable, Offline, RateLimited, InputFault.
        """
        check_repo_id(repo)
        url = f"{self.endpoint}/api/models/{repo}"
        if revision is not None:
            url = f"{url}/revision/{quote(revision, safe='')}"
        with self._translated(repo):
            info = _model_info(**self._answer(url, {"blobs": "true"})[1])
            return _repository(repo, self.endpoint, info)

    def _answer(self, url: str, params: dict[str, Any] | None) -> tuple[httpx2.Response, Any]:
        """The answer to a GET, and its JSON. Raises: HTTP errors; HubUnreachable: it is too large; ValueError."""
        response = get_session().get(url, params=params, headers=self.headers())
        hf_raise_for_status(response)
        try:
            JsonSizeCounter(_MAX_OBJECTS, _MAX_VALUES).count_all(response.content)
        except InputFault:
            raise HubUnreachable(self.endpoint, f"its answer has more than {_MAX_VALUES} values") from None
        return response, json.loads(response.content)

    @contextmanager
    def stream(self, url: str, repo: str, start: int, end: int | None) -> Iterator[httpx2.Response]:
        """An unread response to a GET of the bytes [start, end), or to the end if None; redirects are followed.

        Raises: as `repository`; httpx2.TransportError if the connection breaks (the caller decides whether to
        retry).
        """
        span = f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"
        headers = {**self.headers(), "Range": span}
        if not url.startswith(f"{self.endpoint}/"):
            headers.pop("authorization", None)  # direct request to storage: only the hub may get the token
        with (
            self._translated(repo, keep_transport=True),
            get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT) as response,
        ):
            if response.status_code >= httpx2.codes.BAD_REQUEST:
                response.read()
            hf_raise_for_status(response)
            yield response

    @contextmanager
    def _translated(self, repo: str, *, keep_transport: bool = False) -> Iterator[None]:
        """Convert client errors to Tessera errors; those that a retry may fix stay distinct from permanent ones."""
        try:
            yield
        except hf_errors.GatedRepoError as error:
            raise GatedRepository(repo, f"{self.endpoint}/{repo}", has_token=bool(self.token)) from error
        except tuple(_ABSENT) as error:
            what = next(what for kind, what in _ABSENT.items() if isinstance(error, kind))
            raise RepositoryNotFound(repo, what) from error
        except httpx2.RequestError as error:
            if keep_transport and isinstance(error, httpx2.TransportError):
                raise
            raise HubUnreachable(self.endpoint, str(error) or type(error).__name__) from error
        except hf_errors.OfflineModeIsEnabled as error:
            raise Offline from error
        except hf_errors.HfHubHTTPError as error:
            raise self._http_fault(repo, error) from error
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, httpx2.InvalidURL) as error:
            if keep_transport:
                raise
            raise HubUnreachable(self.endpoint, f"its answer cannot be read ({type(error).__name__})") from error

    def _http_fault(self, repo: str, error: hf_errors.HfHubHTTPError) -> Exception:
        response = error.response
        if response.status_code == httpx2.codes.TOO_MANY_REQUESTS:
            return RateLimited(self.endpoint, retry_after(response))
        if response.status_code in {httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN}:
            return GatedRepository(repo, f"{self.endpoint}/{repo}", has_token=bool(self.token))
        if response.status_code == httpx2.codes.NOT_FOUND:
            return RepositoryNotFound(repo)
        return HubUnreachable(self.endpoint, f"HTTP status {response.status_code}", response.status_code)


def _repository(repo: str, endpoint: str, info: huggingface_hub.ModelInfo) -> Repository:
    """The hub's description of a repository; invalid hashes and files of impossible sizes are omitted."""
    files = [
        RepoFile(
            name=item.rfilename,
            size_bytes=item.size or 0,
            sha256=_hash(_SHA256, item.lfs.sha256) if item.lfs else None,
            git_sha1=_hash(_SHA1, item.blob_id) if not item.lfs else None,
        )
        for item in (info.siblings or [])[:_MAX_FILES]
        if is_safe_name(item.rfilename) and 0 <= (item.size or 0) <= _MAX_FILE_BYTES
    ]
    card: dict[str, Any] = vars(info.card_data) if info.card_data else {}
    license_name, base = card.get("license"), card.get("base_model")
    base = base[0] if isinstance(base, list) and base else base
    return _checked(
        Repository(
            repo=repo,
            endpoint=endpoint,
            revision=str(info.sha),
            files=tuple(files),
            license=license_name if isinstance(license_name, str) else None,
            likes=info.likes or 0,
            updated=info.last_modified.isoformat() if info.last_modified else None,
            base=base if isinstance(base, str) and base != repo and _is_repo_id(base) else None,
        )
    )


def _hash(pattern: re.Pattern[str], value: object) -> str | None:
    """The value if it is a hash. It becomes a file name, so it must not be a path."""
    return value if isinstance(value, str) and pattern.fullmatch(value) else None


def _checked(record: T) -> T:
    """The record, if every field has its type. Raises: ValueError."""
    return msgspec.convert(msgspec.to_builtins(record), learned(type(record)))


def retry_after(response: httpx2.Response) -> float:
    """Seconds to wait after a 429 response: `Retry-After`, else the `t` of `RateLimit`, else 30; at most a day."""
    value = response.headers.get("Retry-After", "")
    _, _, after = response.headers.get("RateLimit", "").partition("t=")
    for digits in (value, after.split(";")[0].strip()):
        if digits.isascii() and digits.isdigit():
            return min(float(digits[:9]), _MAX_RETRY_AFTER_S)
    return 30.0


def check_repo_id(repo: str) -> None:
    """Validate a repository name before it is used in a path or URL. Raises: InputFault."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise InputFault(because("no_repository_name", text=repo[:120]), "repo") from error
    if not all(is_safe_name(part) for part in repo.split("/")):
        raise InputFault(because("no_repository_name", text=repo[:120]), "repo")


def _is_repo_id(text: str) -> bool:
    try:
        check_repo_id(text)
    except InputFault:
        return False
    return "/" in text


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids requests, now or when the client loaded."""
    words = (os.environ.get("HF_HUB_OFFLINE", ""), os.environ.get("TRANSFORMERS_OFFLINE", ""))
    return huggingface_hub.is_offline_mode() or any(word.lower() in _OFFLINE_WORDS for word in words)


def _guard(request: httpx2.Request) -> None:
    """Block requests in offline mode, and set a timeout, because many calls of the client set none."""
    if is_offline():
        raise hf_errors.OfflineModeIsEnabled(str(request.url.host))
    request.headers["Accept-Encoding"] = "identity"
    timeout = request.extensions.get("timeout")
    if not timeout or all(value is None for value in timeout.values()):
        request.extensions["timeout"] = _TIMEOUT.as_dict()


class _BoundedBody(httpx2.SyncByteStream):
    """The body of a response, with limits on its size (None: no limit) and its slowness.

    With `cut`, a body that is too large ends at the limit; otherwise it is an error.
    """

    def __init__(self, stream: httpx2.SyncByteStream, most_bytes: int | None, *, cut: bool) -> None:
        self._stream, self._most_bytes, self._cut = stream, most_bytes, cut

    def __iter__(self) -> Iterator[bytes]:
        chunks, received, waited = iter(self._stream), 0, 0.0
        while True:
            before = time.monotonic()
            chunk = next(chunks, None)
            waited += time.monotonic() - before  # excludes the time in which the reader does something else
            if chunk is None:
                return
            received += len(chunk)
            if self._most_bytes is not None and received > self._most_bytes:
                if self._cut:
                    return
                raise httpx2.RemoteProtocolError(f"its answer has more than {self._most_bytes >> 20} MiB")
            if waited > _SLOW_AFTER_S and received < waited * _LEAST_BYTES_PER_S:
                raise httpx2.ReadTimeout(f"timed out: {received} bytes in {waited:.0f} s")
            yield chunk

    def close(self) -> None:
        self._stream.close()


def _bound(response: httpx2.Response) -> None:
    """Limit the bytes that are read of a response.

    Files that are downloaded have the size that the listing states.
    """
    stream = response.stream
    assert isinstance(stream, httpx2.SyncByteStream)
    is_page = response.status_code >= httpx2.codes.MULTIPLE_CHOICES
    is_file = "range" in response.request.headers and not is_page
    codings = {coding.strip().lower() for coding in response.headers.get("content-encoding", "").split(",")}
    if is_page:
        response.headers.pop("content-encoding", None)
    elif not is_file and codings & _DECODED:  # a small body could become a large one
        raise httpx2.RemoteProtocolError("its answer is compressed, which was not requested")
    most_bytes = None if is_file else _MAX_PAGE_BYTES if is_page else _MAX_ANSWER_BYTES
    response.stream = _BoundedBody(stream, most_bytes, cut=is_page)


def _session() -> httpx2.Client:
    limits = httpx2.Limits(max_connections=32, max_keepalive_connections=16, keepalive_expiry=30)
    return httpx2.Client(
        event_hooks={"request": [_guard], "response": [_bound]},
        follow_redirects=True,
        timeout=_TIMEOUT,
        limits=limits,
    )


huggingface_hub.set_client_factory(_session)


_LICENSE = "license:"  # prefix of the license in the hub's tags


def _hit(model: huggingface_hub.ModelInfo) -> RepoHit:
    gguf = model.gguf if isinstance(model.gguf, dict) else {}
    total, context = gguf.get("total"), gguf.get("context_length")
    hit = RepoHit(
        repo=model.id,
        downloads=model.downloads or 0,
        likes=model.likes or 0,
        gated=bool(model.gated),
        task=model.pipeline_tag,
        updated=model.last_modified.isoformat() if model.last_modified else None,
        architecture=str(gguf["architecture"]) if "architecture" in gguf else None,
        n_params=total if isinstance(total, int) else None,
        context_train=context if isinstance(context, int) else None,
        license=next((tag.removeprefix(_LICENSE) for tag in model.tags or () if tag.startswith(_LICENSE)), None),
    )
    return _checked(hit)


_log = logging.getLogger(__name__)
_SERVICE = "tessera"
_ACCOUNT = "huggingface"


def hub_token() -> str | None:
    """The token to send, or None. HF_TOKEN has priority over the keyring; an empty HF_TOKEN disables the token."""
    if "HF_TOKEN" in os.environ:
        return os.environ["HF_TOKEN"].strip() or None
    import keyring
    import keyring.errors

    try:
        return keyring.get_password(_SERVICE, _ACCOUNT)
    except (keyring.errors.KeyringError, OSError) as error:
        _log.info("no keyring: %s", type(error).__name__)
        return None
