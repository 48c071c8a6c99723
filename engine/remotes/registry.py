"""Stores this installation's workers and their last known state."""

import re
from pathlib import Path
from typing import Final

import msgspec

from devices.types import Device, Evidence, Memory, Runtime
from engine.core.errors import InputFault
from engine.core.json_store import JsonStore
from engine.message_catalog.reasons import because
from engine.remotes.types import PREFIX, Remote, RemoteDevice, SavedRemotes, Seen

MOST: Final = 16
BACKEND: Final = "rpc"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,252}")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._\\@-]{0,63}")


class RemoteRegistry:
    """Workers in a file that the CLI and the server share."""

    def __init__(self, path: Path | None = None) -> None:
        self._store = JsonStore(path, SavedRemotes, SavedRemotes)

    @property
    def remotes(self) -> tuple[Remote, ...]:
        """All workers, in the order they were added."""
        return self._store.get().remotes

    def get(self, name: str) -> Remote:
        """One worker. Raises: InputFault."""
        remote = next((r for r in self.remotes if r.name == name), None)
        if remote is None:
            names = tuple(r.name for r in self.remotes) or ("none",)
            raise InputFault(because("no_such_remote", name=name, known=names), "name")
        return remote

    def seen(self, name: str) -> Seen:
        """Result of the last check."""
        return self._store.get().seen.get(name, Seen())

    def put(self, remote: Remote) -> None:
        """Add or change a worker. Raises: InputFault."""
        check_names(remote.name, remote.user, remote.host)
        with self._store.locked():
            stored = self._store.get()
            others = tuple(r for r in stored.remotes if r.name != remote.name)
            if len(others) >= MOST:
                raise InputFault(because("too_many_remotes", most=MOST), "name")
            seen = {n: s for n, s in stored.seen.items() if n != remote.name}
            self._store.put(SavedRemotes(remotes=(*others, remote), seen=seen))

    def remove(self, name: str) -> None:
        """Remove a worker and its key. Raises: InputFault."""
        with self._store.locked():
            self.get(name)
            stored = self._store.get()
            self._store.put(
                SavedRemotes(
                    remotes=tuple(r for r in stored.remotes if r.name != name),
                    seen={n: s for n, s in stored.seen.items() if n != name},
                )
            )

    def saw(self, name: str, seen: Seen) -> None:
        """Store the result of a check; keep previous facts and link if it has none."""
        with self._store.locked():
            stored = self._store.get()
            if not any(r.name == name for r in stored.remotes):
                return
            before = stored.seen.get(name, Seen())
            seen = msgspec.structs.replace(seen, facts=seen.facts or before.facts, link=seen.link or before.link)
            self._store.put(msgspec.structs.replace(stored, seen={**stored.seen, name: seen}))

    def devices(self) -> tuple[Device, ...]:
        """The workers' devices, in the form of a machine's. A worker that was never reached has none."""
        return tuple(
            _device(remote, seen, index, reported)
            for remote in self.remotes
            if (seen := self.seen(remote.name)).facts is not None
            for index, reported in enumerate(seen.facts.devices)
        )


def check_names(name: str, user: str, host: str) -> None:
    """Check the names. Raises: InputFault: one of them is invalid."""
    if not _NAME.fullmatch(name):
        raise InputFault(because("remote_name", name=name), "name")
    if not _USER.fullmatch(user):
        raise InputFault(because("user_name", user=user), "user")
    if not _HOST.fullmatch(host):
        raise InputFault(because("host_name", host=host), "host")


def device_id(remote: str, reported: RemoteDevice) -> str:
    """Id of a worker's device in the machine's list."""
    return f"{PREFIX}{remote}/{reported.name}"


def remote_of(device: str) -> str:
    """The worker in a device's id; empty for a device of this machine."""
    return device.removeprefix(PREFIX).partition("/")[0] if device.startswith(PREFIX) else ""


def _device(remote: Remote, seen: Seen, index: int, reported: RemoteDevice) -> Device:
    usable = seen.state in {"ok", "slow", "unknown"}
    runtime = Runtime(
        backend=BACKEND,
        device_name=f"{remote.name}:{index}",
        index=index,
        total_bytes=reported.total_bytes,
        free_bytes=reported.free_bytes,
        state="usable" if usable else "failed",
        reason="" if usable else seen.reason,
    )
    return Device(
        id=device_id(remote.name, reported),
        kind="remote",
        vendor="",
        name=f"{reported.description} on {remote.name}",
        state="usable" if usable else "failed",
        memory=Memory(
            physical_bytes=reported.total_bytes,
            dedicated_bytes=reported.total_bytes,
            available_bytes=reported.free_bytes,
            bandwidth_gbs=reported.gbs,
            bandwidth_source=f"tessera worker on {remote.name}",
        ),
        reason="" if usable else seen.reason,
        runtimes=(runtime,),
        evidence=(Evidence("tessera remote check", remote.name, f"{remote.user}@{remote.host}"),),
    )
