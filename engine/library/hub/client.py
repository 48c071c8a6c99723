"""Hub client: converts the hub's responses to Tessera's records and errors. It uses huggingface-hub's session."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

# Read when huggingface_hub is imported: no telemetry, no update check, and no implicit token.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_UPDATE_CHECK"] = "1"
os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"  # noqa: S105 a switch

import httpx2
import huggingface_hub
from huggingface_hub import errors as hf_errors
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # its re-exports are not declared
    HFValidationError,
    build_hf_headers,
    get_session,
    hf_raise_for_status,
    validate_repo_id,
)

from engine.core.errors import InputFault
from engine.library.errors import GatedRepository, HubUnreachable, Offline, RateLimited, RepositoryNotFound
from engine.library.hub.repository import is_safe_name
from engine.library.hub.types import RepoFile, RepoHit, Repository
from engine.message_catalog.reasons import because

_DEFAULT_ENDPOINT = "https://huggingface.co"
_TIMEOUT = httpx2.Timeout(10.0)
_VERSION = "1"
_MAX_FILES = 20_000
_model_info: Callable[..., huggingface_hub.ModelInfo] = huggingface_hub.ModelInfo  # its __init__ is unannotated
_OFFLINE_WORDS = frozenset({"1", "on", "yes", "true"})


class HubClient:
    """One hub. `endpoint` defaults to HF_ENDPOINT, else huggingface.co; `token` defaults to `hub_token`."""

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")
        self._token: str | bool | None = token
        self._api: huggingface_hub.HfApi | None = None

    def __repr__(self) -> str:
        return f"HubClient({self.endpoint!r})"  # the token must not appear in logs

    @property
    def token(self) -> str | bool:
        """The token to send, or False for none; read once, on first use."""
        if self._token is None:
            self._token = hub_token() or False
        return self._token

    @property
    def api(self) -> huggingface_hub.HfApi:
        if self._api is None:
            self._api = huggingface_hub.HfApi(
                endpoint=self.endpoint, token=self.token, library_name="tessera", library_version=_VERSION
            )
        return self._api

    def headers(self) -> dict[str, str]:
        """Headers for requests to the hub; on a redirect to another host the authorization is dropped."""
        headers: dict[str, str] = build_hf_headers(
            token=self.token, library_name="tessera", library_version=_VERSION
        )
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
                response = get_session().get(url, params=params, headers=self.headers())
                hf_raise_for_status(response)
                hits += [_hit(_model_info(**item)) for item in response.json()]
                url, params = response.links.get("next", {}).get("url"), None
                if url and not url.startswith(f"{self.endpoint}/"):
                    break  # another host must not get the token
        return tuple(hits[:limit])

    def repository(self, repo: str, revision: str | None = None) -> Repository:
        """Files of a repository at one commit, with size and expected hash of each.

        Raises: RepositoryNotFound, GatedRepository, HubUnreachable, Offline, RateLimited, InputFault.
        """
        check_repo_id(repo)
        with self._translated(repo):
            info = self.api.model_info(repo, revision=revision, files_metadata=True, timeout=20)
        files = [
            RepoFile(
                name=item.rfilename,
                size_bytes=item.size or 0,
                sha256=item.lfs.sha256 if item.lfs else None,
                git_sha1=item.blob_id if not item.lfs else None,
            )
            for item in (info.siblings or [])[:_MAX_FILES]
            if is_safe_name(item.rfilename)
        ]
        card: dict[str, Any] = vars(info.card_data) if info.card_data else {}
        license_name, base = card.get("license"), card.get("base_model")
        base = base[0] if isinstance(base, list) and base else base
        return Repository(
            repo=repo,
            endpoint=self.endpoint,
            revision=str(info.sha),
            files=tuple(files),
            license=license_name if isinstance(license_name, str) else None,
            likes=info.likes or 0,
            updated=info.last_modified.isoformat() if info.last_modified else None,
            base=base if isinstance(base, str) and base != repo and _is_repo_id(base) else None,
        )

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
        except hf_errors.RevisionNotFoundError as error:
            raise RepositoryNotFound(repo, "revision of") from error
        except hf_errors.RepositoryNotFoundError as error:
            raise RepositoryNotFound(repo) from error
        except hf_errors.EntryNotFoundError as error:
            raise RepositoryNotFound(repo, "such file in") from error
        except httpx2.TransportError as error:
            if keep_transport:
                raise
            raise HubUnreachable(self.endpoint, str(error) or type(error).__name__) from error
        except hf_errors.OfflineModeIsEnabled as error:
            raise Offline from error
        except hf_errors.HfHubHTTPError as error:
            raise self._http_fault(repo, error) from error

    def _http_fault(self, repo: str, error: hf_errors.HfHubHTTPError) -> Exception:
        response = error.response
        if response.status_code == httpx2.codes.TOO_MANY_REQUESTS:
            return RateLimited(self.endpoint, retry_after(response))
        if response.status_code in {httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN}:
            return GatedRepository(repo, f"{self.endpoint}/{repo}", has_token=bool(self.token))
        if response.status_code == httpx2.codes.NOT_FOUND:
            return RepositoryNotFound(repo)
        return HubUnreachable(self.endpoint, f"HTTP status {response.status_code}", response.status_code)


def retry_after(response: httpx2.Response) -> float:
    """Seconds to wait after a 429 response: `Retry-After`, else the `t` of `RateLimit`, else 30."""
    value = response.headers.get("Retry-After", "")
    if value.isdigit():
        return float(value)
    _, separator, after = response.headers.get("RateLimit", "").partition("t=")
    digits = after.split(";")[0].strip()
    return float(digits) if separator and digits.isdigit() else 30.0


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
    timeout = request.extensions.get("timeout")
    if not timeout or all(value is None for value in timeout.values()):
        request.extensions["timeout"] = _TIMEOUT.as_dict()


def _session() -> httpx2.Client:
    limits = httpx2.Limits(max_connections=32, max_keepalive_connections=16, keepalive_expiry=30)
    return httpx2.Client(
        event_hooks={"request": [_guard]},
        follow_redirects=True,
        timeout=_TIMEOUT,
        limits=limits,
    )


huggingface_hub.set_client_factory(_session)


_LICENSE = "license:"  # prefix of the license in the hub's tags


def _hit(model: huggingface_hub.ModelInfo) -> RepoHit:
    gguf = model.gguf if isinstance(model.gguf, dict) else {}
    total, context = gguf.get("total"), gguf.get("context_length")
    return RepoHit(
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
