"""What goes wrong between here and a worker; each says which one, what happened, and what to do."""

from typing import Final

from engine.errors import EnvironmentFault
from engine.remotes.types import State

_NEXT: Final[dict[State, str]] = {
    "unreachable": "Is it on, and does ssh reach it? tessera remote check {name}",
    "refused": "Is your public key in its authorized_keys, and the agent running? tessera remote check {name}",
    "changed_key": "If that computer was set up anew: tessera remote remove {name}, then add it again.",
    "no_worker": "Start it over there: tessera worker",
    "other_kernel": "Install the same version of Tessera on both.",
    "lost": "The next request is planned without it until it answers: tessera remote check {name}",
}


class RemoteFault(EnvironmentFault):
    """A worker, or the way to it, is the reason. `state` says what is wrong with it."""

    code = "remote_failed"

    def __init__(self, remote: str, state: State, reason: str) -> None:
        hint = _NEXT.get(state, "").format(name=remote)
        super().__init__(f"{remote}: {reason}. {hint}".rstrip())
        self.remote, self.state, self.reason = remote, state, reason


class NotAdded(RemoteFault):
    """A worker was not kept: the computer that the request names did not show its key, or shows another one."""


class UnknownHostKey(EnvironmentFault):
    """The computer shows a key that nobody has said is its own."""

    code = "unknown_host_key"

    def __init__(self, host: str, fingerprint: str) -> None:
        super().__init__(
            f"{host} shows the host key {fingerprint}, which this computer does not know. If it is the right one "
            f"(over there: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), add it with --host-key {fingerprint}"
        )
        self.host, self.fingerprint = host, fingerprint
