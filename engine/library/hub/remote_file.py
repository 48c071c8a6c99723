"""A file on a hub as a byte source for the bounded header readers."""

import httpx2

from engine.core.errors import InputFault
from engine.library.errors import HubUnreachable
from engine.library.hub.client import HubClient
from engine.library.hub.types import RepoFile, Repository
from engine.message_catalog.reasons import because

_ATTEMPTS = 3


class RemoteFile:
    """Reads spans by HTTP ranges; `fetched_bytes` counts what crossed the network."""

    def __init__(self, client: HubClient, repository: Repository, file: RepoFile) -> None:
        self._client = client
        self._repo = repository.repo
        self._url = client.file_url(repository.repo, repository.revision, file.name)
        self._file = file
        self.fetched_bytes = 0

    @property
    def name(self) -> str:
        """Repository and file name."""
        return f"{self._repo}/{self._file.name}"

    @property
    def size(self) -> int:
        """Size as the hub lists it."""
        return self._file.size_bytes

    def read_at(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length), less at the end.

        Raises: HubUnreachable, Offline, RateLimited, GatedRepository, RepositoryNotFound.
        """
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        problem = ""
        for _ in range(_ATTEMPTS):
            try:
                return self._fetch(offset, end)
            except httpx2.TransportError as error:
                problem = type(error).__name__
        raise HubUnreachable(self._client.endpoint, problem)

    def _fetch(self, start: int, end: int) -> bytes:
        with self._client.stream(self._url, self._repo, start, end) as response:
            self._url = str(response.url)  # storage, after the redirect: the next read goes there at once
            if response.status_code != httpx2.codes.PARTIAL_CONTENT and (start, end) != (0, self.size):
                raise InputFault(because("no_ranges", file=self.name), "repo")
            chunks = []
            missing = end - start
            for chunk in response.iter_raw():
                chunks.append(chunk[:missing])
                self.fetched_bytes += len(chunk)
                missing -= len(chunks[-1])
                if missing <= 0:
                    break
            if missing:
                raise httpx2.RemoteProtocolError("the answer ended early")
        return b"".join(chunks)
