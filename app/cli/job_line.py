"""Jobs in the terminal: follows a job of the local server until it ends."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Literal, TypeVar

import click

from app.cli.connection import connected

if TYPE_CHECKING:
    from app.client import Client
    from engine.api.jobs import Job, Progress

T = TypeVar("T")


def this_computers_server() -> "AbstractContextManager[Client]":
    """A client of a local server: the files and models that these commands name are on this computer."""
    return connected(here=True)


def finish(
    client: "Client",
    job: "Job",
    result: type[T],
    show: "Callable[[Progress], None]",
    *,
    on_interrupt: Literal["pause", "finish", "cancel"] = "cancel",
) -> T:
    """Show a job until it ends; return its result. Ctrl-C pauses or cancels it and waits until it has stopped.

    `finish` ends it with its usable result so far; without one, and at a second Ctrl-C, it is cancelled.

    Raises: JobFailed; Interrupted: the job was paused or cancelled, by this command or another client.
    """
    from app.client import JobFailed
    from engine.api.jobs import result_of

    state, actions = job, {"finish": ["finish", "cancel"]}.get(on_interrupt, [on_interrupt])
    while state.state not in {"done", "failed", "cancelled", "paused"}:
        try:
            state = _follow(client, state, show)
        except KeyboardInterrupt:
            from app.client import ApiError

            with suppress(ApiError):  # it ended at the same moment
                try:
                    client.job_action(job.id, actions[0])
                except ApiError:  # it has no usable result so far
                    client.job_action(job.id, actions[-1])
            actions = actions[-1:]
    value = result_of(state, result)
    if state.error is not None:
        raise JobFailed(state.error)
    if value is None:
        raise Interrupted(state.state)
    return value


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


class Interrupted(click.ClickException):
    """A job was paused or cancelled; `state` is the one or the other."""

    exit_code = 130  # the exit code that shells use for Ctrl-C

    def __init__(self, state: str) -> None:
        super().__init__("Cancelled." if state == "cancelled" else "Paused.")
        self.state = state
