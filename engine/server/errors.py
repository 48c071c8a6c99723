"""Maps engine errors to HTTP responses by class, most specific first."""

from collections.abc import Callable
from typing import Any

import msgspec

from devices.errors import TesseraError
from engine.core import errors
from engine.documents import errors as documents
from engine.library import errors as library
from engine.remotes import errors as remotes
from engine.runner.faults import RequestFailed
from engine.server.response_store.responses import PreviousResponseNotFound, ResponseNotFound
from engine.server.streams import NoStream
from engine.upstreams import errors as upstreams

# class: (HTTP status, OpenAI error type, whether a retry may help)
STATUS: dict[type[Exception], tuple[int, str, bool]] = {
    library.RepositoryNotFound: (404, "invalid_request_error", False),
    library.GatedRepository: (403, "invalid_request_error", False),
    library.NotEnoughDisk: (507, "server_error", False),
    PreviousResponseNotFound: (400, "invalid_request_error", False),
    ResponseNotFound: (404, "invalid_request_error", False),
    NoStream: (404, "invalid_request_error", False),
    documents.NoCollection: (404, "invalid_request_error", False),
    documents.FileNotFound: (404, "invalid_request_error", False),
    documents.NotAgreed: (409, "invalid_request_error", False),
    documents.NoDocument: (404, "invalid_request_error", False),
    remotes.UnknownHostKey: (409, "invalid_request_error", False),
    remotes.NotAdded: (424, "invalid_request_error", False),
    remotes.RemoteFault: (503, "server_error", True),
    upstreams.NoRule: (403, "invalid_request_error", False),
    errors.StaysHere: (403, "invalid_request_error", False),
    upstreams.UpstreamBusy: (429, "rate_limit_error", True),
    upstreams.UpstreamFault: (502, "server_error", True),
    upstreams.UpstreamRefusesKey: (502, "server_error", False),
    errors.ModelNotFound: (404, "invalid_request_error", False),
    errors.BadModelFile: (422, "invalid_request_error", False),
    errors.InputFault: (400, "invalid_request_error", False),
    errors.ModelNotLoaded: (409, "invalid_request_error", False),
    errors.BatterySpent: (503, "server_error", False),
    errors.NotEnoughMemory: (507, "server_error", False),
    errors.NoLoadSurvived: (422, "invalid_request_error", False),
    errors.RunnerDied: (503, "server_error", True),
    errors.EnvironmentFault: (503, "server_error", True),
    errors.PartMissing: (503, "server_error", False),
    errors.Cancelled: (499, "invalid_request_error", False),
    RequestFailed: (500, "server_error", False),
    TesseraError: (500, "server_error", False),
}


def lookup(error: Exception) -> tuple[int, str, bool]:
    """HTTP status, OpenAI error type and whether a retry may help, for any exception."""
    for cls in type(error).__mro__:
        if cls in STATUS:
            return STATUS[cls]
    return 500, "server_error", False


class ErrorShape(msgspec.Struct, frozen=True):
    """Error format of one protocol: a response body, an event in a running stream, a refusal.

    A refusal is sent before routing. If a path has no route, `prefixes` decide which protocol it belongs to.
    `schema` is the struct on the API page.
    """

    prefixes: tuple[str, ...]
    body: Callable[[Exception, str], dict[str, Any]]
    event: Callable[[Exception], bytes]
    refusal: Callable[[int, str, str], dict[str, Any]]
    schema: type


class NotServed(errors.InputFault):
    """The protocol has this route, but this server does not support it."""

    code = "not_supported"


def retry_header(error: Exception) -> dict[str, str]:
    """Header against retries. Official clients retry 5xx by default, and would repeat a long prefill."""
    return {} if lookup(error)[2] else {"x-should-retry": "false"}
