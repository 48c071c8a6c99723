"""Findings of `tessera doctor` about workers: which cannot be used, why, and what to do about it."""

from typing import Final

from devices.types import Finding
from engine.remotes.registry import RemoteRegistry
from engine.remotes.types import State

_STEPS: Final[dict[State, str]] = {
    "unknown": "Check it: tessera remote check {name}",
    "unreachable": "Is {host} on, and its SSH server at port {port}? Then: tessera remote check {name}",
    "refused": "Try the login by hand: ssh -p {port} {user}@{host}",
    "changed_key": "If {host} was reinstalled, compare the fingerprint: tessera remote add {name} {user}@{host}",
    "no_worker": "Start it on the remote host: tessera worker",
    "other_kernel": "Install the same version of Tessera on both computers",
    "slow": "Measure the connection again when nothing else uses it: tessera remote check {name}",
    "lost": "Check it again: tessera remote check {name}",
}


def findings(registry: RemoteRegistry) -> tuple[Finding, ...]:
    """One finding for each unusable worker, from its stored state; no worker is contacted."""
    rows = []
    for remote in registry.remotes:
        seen = registry.seen(remote.name)
        if seen.state == "ok":
            continue
        usable = seen.state in {"slow", "unknown"}
        title = f"{remote.name} was never checked" if seen.state == "unknown" else f"{remote.name} cannot be used"
        if seen.state == "slow":
            title = f"The connection to {remote.name} is slow"
        names = {"name": remote.name, "host": remote.host, "user": remote.user, "port": remote.port}
        rows.append(
            Finding(
                f"remote_{seen.state}",
                "advice" if usable else "warning",
                title,
                f"{seen.reason[:1].upper()}{seen.reason[1:]}." if seen.reason else "",
                _STEPS[seen.state].format(**names),
            )
        )
    return tuple(rows)
