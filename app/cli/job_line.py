"""`tessera jobs`, and following a job of the local server in the terminal until it ends."""

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar

import click

from app.cli.connection import connected
from app.cli.echo import InputRefused, echo
from app.cli.progress import JobLine

if TYPE_CHECKING:
    from app.client import Client
    from engine.api.jobs import Job, Progress

T = TypeVar("T")

_STOPPED = {"done", "failed", "cancelled", "paused"}
# Signals that end the command, but not a job in a server that other programs use too.
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


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
    with _left_running(client, job.id):
        while state.state not in _STOPPED:
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


@contextmanager
def _left_running(client: "Client", job: str) -> Iterator[None]:
    """During the block, a signal that ends this command prints how to follow or cancel its job.

    A private server ends with the command, and its job with it.
    """
    if client.pid is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: object) -> NoReturn:
        _leave(job, number)

    before = [(number, signal.signal(number, leave)) for number in _ENDING]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


class Interrupted(click.ClickException):
    """A job was paused or cancelled; `state` tells the two apart."""

    exit_code = 130  # the exit code that shells use for Ctrl-C

    def __init__(self, state: str, words: str = "") -> None:
        super().__init__(words or ("Cancelled." if state == "cancelled" else "Paused."))
        self.state = state


def _leave(job: str, number: int) -> NoReturn:
    """End the command by a signal; its job continues in the server."""
    echo(
        f"The server continues this job. Follow it: tessera jobs follow {job}. "
        f"Cancel it: tessera jobs cancel {job}.",
        err=True,
    )
    raise SystemExit(128 + number)  # the exit code that shells use for a signal


@click.group("jobs", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the server's jobs (downloads, quantizations, measurements), newest first, and control them.

    A job continues in the running server if the command that started it is killed or its terminal is closed.
    """
    if ctx.invoked_subcommand is None:
        _show(as_json=as_json)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_command(as_json: bool) -> None:
    """The same as tessera jobs."""
    _show(as_json=as_json)


def _show(*, as_json: bool) -> None:
    import msgspec

    with this_computers_server() as client:
        jobs = client.jobs()
    if as_json:
        click.echo(json.dumps({"jobs": msgspec.to_builtins(jobs)}))
        return
    if not jobs:
        echo("There are no jobs.")
    for job in jobs:
        echo(_described(job))


@command.command("follow")
@click.argument("job")
def follow(job: str) -> None:
    """Show the progress of JOB (an id, or its beginning) until it ends. Ctrl-C stops only the display."""
    from app.client import JobFailed

    line = JobLine(enabled=sys.stderr.isatty())
    with this_computers_server() as client:
        state = _found(client, job)
        try:
            with _left_running(client, state.id):
                while state.state not in _STOPPED:
                    state = _follow(client, state, line.update)
        except KeyboardInterrupt:
            _leave(state.id, signal.SIGINT)
        finally:
            line.clear()
    echo(_described(state))
    if state.error is not None:
        raise JobFailed(state.error)


def _action(name: str, help_text: str) -> click.Command:
    def act(job: str) -> None:
        with this_computers_server() as client:
            echo(_described(client.job_action(_found(client, job).id, name)))

    return click.Command(name, callback=act, params=[click.Argument(["job"])], help=help_text)


for _name, _help in {
    "pause": "Pause JOB; `resume` continues it.",
    "resume": "Continue JOB, which was paused or failed.",
    "finish": "End JOB with its best result so far.",
    "cancel": "Cancel JOB and delete its partial results.",
}.items():
    command.add_command(_action(_name, _help))


def _found(client: "Client", text: str) -> "Job":
    """The job with this id, or the only one whose id begins with `text`."""
    jobs = client.jobs()
    matches = [job for job in jobs if job.id == text] or [job for job in jobs if text and job.id.startswith(text)]
    if len(matches) != 1:
        problem = f"Several jobs begin with {text!r}." if matches else f"There is no job {text!r}."
        raise InputRefused(f"{problem} `tessera jobs` lists the jobs.")
    return matches[0]


def _described(job: "Job") -> str:
    from app.tools.types import shown_text

    progress = job.progress
    share = (
        f" {progress.done / progress.total:.0%}" if progress.total and job.state in {"running", "paused"} else ""
    )
    reason = f": {job.error.message}" if job.error is not None else ""
    return shown_text(f"{job.id}\t{job.state}{share}\t{job.title}{reason}")
