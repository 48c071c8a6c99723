"""/tessera/v1/requests: the last requests and the programs that sent them."""

import msgspec


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request for inference, without anything that was said in it. Times in seconds; None: not known."""

    id: str
    time: float
    route: str
    program: str
    address: str
    status: int = 0
    seconds: float = 0.0
    sent_bytes: int = 0
    running: bool = True
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    tok_s: float | None = None


class Program(msgspec.Struct, kw_only=True):
    """A program at an address, by the product its User-Agent names; `connected`: it asked lately."""

    name: str
    address: str
    first_seen: float
    last_seen: float
    num_requests: int = 0
    active: int = 0
    connected: bool = False


class RecentActivity(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/requests, newest first."""

    requests: tuple[RequestRecord, ...] = ()
    programs: tuple[Program, ...] = ()
