"""Errors of workers and the connections to them; each names the worker, what happened, and what to do."""

from typing import Final

from engine.core.errors import EnvironmentFault
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because
from engine.remotes.types import State

_NEXT: Final[dict[State, str]] = {
    "unreachable": "try_on",
    "refused": "try_login",
    "changed_key": "try_anew",
    "no_worker": "try_start",
    "other_kernel": "try_same_version",
    "lost": "try_look_again",
}


class RemoteFault(EnvironmentFault):
    """A worker, or the connection to it, failed. `state` is the kind of problem, `why` has details."""

    code = "remote_failed"

    def __init__(self, remote: str, state: State, why: str | Reason) -> None:
        what = because("remote_failed", remote=remote, why=why)
        if state in _NEXT:
            what = because("remote_failed_next", remote=remote, why=why, next=because(_NEXT[state], remote=remote))
        super().__init__(what)
        self.remote, self.state, self.reason = remote, state, sentence(why)
        self._why = why

    @property
    def why(self) -> str | Reason:
        """The cause, without the worker's name and the advice."""
        return self._why


class NotAdded(RemoteFault):
    """A worker was not added: the computer in the request did not show its key, or showed another one."""


class UnknownHostKey(EnvironmentFault):
    """Neither the user nor known_hosts has confirmed the host's key yet."""

    code = "unknown_host_key"

    def __init__(self, host: str, fingerprint: str) -> None:
        super().__init__(because("unknown_host_key", host=host, fingerprint=fingerprint))
        self.host, self.fingerprint = host, fingerprint
