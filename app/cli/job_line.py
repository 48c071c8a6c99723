"""Long work in the terminal: a job of this computer's server, shown until it ends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, TypeVar

from app.server_process import ServerProcess

if TYPE_CHECKING:
    from app.client import Client
    from engine.api.jobs import Job, Progress

T = TypeVar("T")


@contextmanager
def this_computers_server() -> "Iterator[Client]":
    """The server that runs here, or a private one for this block; never the one that `tessera connect` chose.

    What these commands name, files and models alike, is on this computer.
    """
    from engine.services import user_paths  # noqa: PLC0415 - keeps `tessera --help` fast

    # Where none has said that it runs, ours starts while this process still imports what speaks to it.
    own = None if user_paths().server_file.exists() else ServerProcess()
    from app.client import local_server  # noqa: PLC0415 - as just said

    client = local_server() if own is None else None
    if client is None:
        own = own or ServerProcess()
        client = own.connect()
    try:
        yield client
    finally:
        client.close()
        if own is not None:
            own.stop()


def finish(
    client: "Client",
    job: "Job",
    result: type[T],
    show: "Callable[[Progress], None]",
    *,
    on_interrupt: Literal["pause", "cancel"] = "cancel",
) -> T:
    """Show a job until it ends; its result. Ctrl-C pauses or cancels it, and waits until it has stopped.

    Raises: JobFailed; Interrupted: it was paused or cancelled, here or by somebody else.
    """
    from app.client import JobFailed  # noqa: PLC0415 - keeps `tessera --help` fast
    from engine.api.jobs import result_of  # noqa: PLC0415 - as above

    state = job
    while state.state not in {"done", "failed", "cancelled", "paused"}:
        try:
            state = _follow(client, state, show)
        except KeyboardInterrupt:
            from app.client import ApiError  # noqa: PLC0415 - as above

            with suppress(ApiError):  # it ended in this moment
                client.job_action(job.id, on_interrupt)
    found = result_of(state, result)
    if state.error is not None:
        raise JobFailed(state.error)
    if found is None:
        raise Interrupted(state.state)
    return found


def _follow(client: "Client", job: "Job", show: "Callable[[Progress], None]") -> "Job":
    events = client.events_of(job.id)
    try:
        for state in events:
            job = state
            if state.progress.phase:
                show(state.progress)
            if state.state == "paused":
                break
    finally:
        events.close()
    return job


class Interrupted(Exception):
    """A job stopped because somebody wanted it: `state` is paused or cancelled."""

    def __init__(self, state: str) -> None:
        super().__init__("Cancelled." if state == "cancelled" else "Paused.")
        self.state = state
