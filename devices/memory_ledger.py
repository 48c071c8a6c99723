"""The ledger: every byte that a runner will take or has taken, against the pools that physically exist.

A load is reserved before it begins and refused if it exceeds a pool. After the load, the measured bytes are
compared with the prediction and correct the next one. Thread-safe; one per server.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict, force_setattr, replace

from devices.atomic_file import locked, write_atomically
from devices.errors import PoolExceeded
from devices.probes.gpu_linux import reserve_bytes
from devices.process_memory import process_memory
from devices.types import Device, Machine, Pool, ProcessMemory

# Compares predictions with measurements: stored, shown, and used to correct later predictions of the same kind.

MAX_ENTRIES = 500
# One load moves the correction by this share of its error, so that a single bad measurement cannot spoil it.
WEIGHT = 0.5
# Only upwards: just after a load less memory is resident than in full use, so a low value disproves nothing.
# Above the upper bound the prediction has a bug that no factor fixes.
SMALLEST, LARGEST = 1.0, 1.25


class Audit(msgspec.Struct, frozen=True):
    """One audit of a loaded model: predicted and measured bytes, backend buffers by name, seconds since the epoch.

    `moment` is `load`, just after it, when not everything reserved was used yet, or `unload`, after use.
    `error_frac`, derived from these, is the prediction's error as a share of the measured bytes; positive means
    that too much was predicted.
    """

    owner: str
    key: str
    predicted_bytes: int
    measured_bytes: int
    at: float
    buffers: Mapping[str, int] = msgspec.field(default_factory=dict)
    moment: str = "load"
    error_frac: float = 0.0

    def __post_init__(self) -> None:
        off = self.predicted_bytes - self.measured_bytes
        force_setattr(self, "error_frac", off / self.measured_bytes if self.measured_bytes else 0.0)


class AuditLog:
    """The last audits, in `path` as JSON lines (None: in memory only). A corrupt line is skipped."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._audits = _read(path)[-MAX_ENTRIES:] if path else []

    def all(self) -> tuple[Audit, ...]:
        """All audits, oldest first."""
        with self._lock:
            return tuple(self._audits)

    def correction(self, key: str) -> float:
        """Factor for predictions of this kind; 1 if nothing was measured yet."""
        factor = 1.0
        with self._lock:
            ratios = [
                a.measured_bytes / a.predicted_bytes for a in self._audits if a.key == key and a.predicted_bytes
            ]
        for ratio in ratios:  # predictions were corrected by the factor of their time, so ratios multiply
            factor *= 1 + WEIGHT * (ratio - 1)
            factor = min(LARGEST, max(SMALLEST, factor))
        return factor

    def add(
        self,
        owner: str,
        key: str,
        predicted_bytes: int,
        measured_bytes: int,
        buffers: Mapping[str, int],
        moment: str = "load",
    ) -> Audit:
        """Store one measurement."""
        audit = Audit(owner, key, predicted_bytes, measured_bytes, time.time(), dict(buffers), moment)
        with self._lock:
            self._audits = [*self._audits, audit][-MAX_ENTRIES:]
            if self._path is not None:
                # A full disk must not fail a load that has succeeded. Another server may have stored audits.
                with contextlib.suppress(OSError), locked(self._path):
                    self._audits = [*(_read(self._path) or self._audits[:-1]), audit][-MAX_ENTRIES:]
                    _write(self._path, self._audits)
        return audit


def _read(path: Path) -> list[Audit]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    audits = []
    for line in lines[-MAX_ENTRIES:]:
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            audits.append(_audit(json.loads(line)))
    return audits


def _audit(item: Any) -> Audit:
    predicted, measured = item["predicted_bytes"], item["measured_bytes"]
    if not (type(predicted) is int and type(measured) is int and predicted > 0 and measured > 0):
        raise ValueError(item)
    buffers = {str(name): int(size) for name, size in item.get("buffers", {}).items()}
    return Audit(
        str(item["owner"]),
        str(item["key"]),
        predicted,
        measured,
        float(item["at"]),
        buffers,
        str(item.get("moment", "load")),
    )


def _write(path: Path, audits: list[Audit]) -> None:
    write_atomically(path, "".join(json.dumps(asdict(audit)) + "\n" for audit in audits).encode(), durable=False)


class DeviceBytes(msgspec.Struct, frozen=True):
    """Bytes on one device. `mapped` file pages can be dropped and read again, but then every token waits."""

    anonymous_bytes: int
    mapped_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.anonymous_bytes + self.mapped_bytes


class Reservation(msgspec.Struct, frozen=True):
    """Memory granted to one runner, by device id, and its measured use. `parts`: bytes by purpose."""

    owner: str
    key: str
    amounts: Mapping[str, DeviceBytes]
    drawn: Mapping[str, int]
    pid: int | None = None
    measured: ProcessMemory | None = None
    buffers: Mapping[str, int] = msgspec.field(default_factory=dict)
    expected_bytes: int | None = None
    parts: Mapping[str, int] = msgspec.field(default_factory=dict)

    @property
    def predicted_bytes(self) -> int:
        """Predicted bytes over all devices."""
        return sum(amount.total_bytes for amount in self.amounts.values())


class Ledger:
    """Reservations over the machine's pools. `read_machine` returns the free memory for every decision."""

    def __init__(
        self,
        read_machine: Callable[[], Machine],
        audits: AuditLog | None = None,
        measure: Callable[[int], ProcessMemory | None] = process_memory,
    ) -> None:
        self._read_machine = read_machine
        self._measure = measure
        self.audits = audits or AuditLog(None)
        self._by_owner: dict[str, Reservation] = {}
        self._lock = threading.Lock()

    def reserve(
        self,
        owner: str,
        amounts: Mapping[str, DeviceBytes],
        key: str = "",
        expected_bytes: int | None = None,
        parts: Mapping[str, int] | None = None,
    ) -> Reservation:
        """Reserve memory for `owner` (replacing its reservation). `key` groups loads with similar errors.

        `expected_bytes` is what its process should show in full use, if that is less than the reservation;
        `parts` is the purpose of the bytes.

        Raises: PoolExceeded: a pool is too small now; nothing was changed.
        """
        machine = self._read_machine()
        with self._lock:
            drawn = self._draw(machine, amounts, exclude=owner)
            reservation = Reservation(
                owner, key, dict(amounts), drawn, expected_bytes=expected_bytes, parts=parts or {}
            )
            self._by_owner[owner] = reservation
        return reservation

    def check(self, amounts: Mapping[str, DeviceBytes], exclude: str = "") -> None:
        """Raise PoolExceeded if these bytes are not available now; reserves nothing."""
        machine = self._read_machine()
        with self._lock:
            self._draw(machine, amounts, exclude)

    def attach(self, owner: str, pid: int, measured: ProcessMemory | None = None) -> None:
        """Set the process of a reservation, so that a load in progress is not counted twice.

        `measured` is its memory when the load has ended: from then on, free memory of GPUs is without the load.
        """
        with self._lock:
            if owner in self._by_owner:
                self._by_owner[owner] = replace(self._by_owner[owner], pid=pid, measured=measured)

    def attach_to(self, owner: str, other: str) -> None:
        """Count a reservation as memory that the process of `other` has allocated by now."""
        with self._lock:
            row, first = self._by_owner.get(owner), self._by_owner.get(other)
            if row is not None and first is not None:
                self._by_owner[owner] = replace(row, pid=first.pid, measured=first.measured)

    def record_measured(
        self,
        owner: str,
        measured: ProcessMemory | None = None,
        buffers: Mapping[str, int] | None = None,
        *,
        moment: str = "load",
        cached_bytes: int = 0,
        pid: int | None = None,
    ) -> Audit | None:
        """Record the memory of the process after a load or before an unload; measured here by its pid if not given.

        `buffers` are its backend's (None: as at the last audit); `cached_bytes` of its memory are a cache that no
        prediction counts. `pid`: nothing is recorded if another process has the reservation now.

        Returns the audit, which is stored and corrects later predictions of the same key; None if unknown.
        """
        if measured is None:
            with self._lock:
                reservation = self._by_owner.get(owner)
            if reservation is None or reservation.pid is None:
                return None
            pid, measured = reservation.pid, self._measure(reservation.pid)
        with self._lock:  # it may have been released or changed while the process was measured
            reservation = self._of_process(owner, pid)
            if reservation is None or measured is None:
                return None
            buffers_by_device = dict(reservation.buffers if buffers is None else buffers)
            self._by_owner[owner] = replace(reservation, measured=measured, buffers=buffers_by_device)
        # The expected bytes of a process are host memory; without them, its device buffers count too.
        devices = [d for d in reservation.amounts if d != "cpu"] if reservation.expected_bytes is None else []
        on_gpu = sum(buffers_by_device.get(device, 0) for device in devices)
        return self.audits.add(
            owner,
            reservation.key,
            reservation.expected_bytes or reservation.predicted_bytes,
            # Predictions ignore shared pages.
            max(1, measured.rss_bytes - cached_bytes) + on_gpu,
            buffers_by_device,
            moment,
        )

    def refine(
        self,
        owner: str,
        amounts: Mapping[str, DeviceBytes],
        expected_bytes: int | None,
        parts: Mapping[str, int],
        *,
        pid: int | None = None,
    ) -> None:
        """Update the numbers of an admitted load. `expected_bytes` is what its process should show.

        `pid`: nothing changes if another process has the reservation now.
        """
        machine = self._read_machine()
        with self._lock:
            reservation = self._of_process(owner, pid)
            if reservation is None:
                return
            try:
                drawn = self._draw(machine, amounts, exclude=owner)
            except PoolExceeded:  # it is loaded, so it uses the bytes anyway
                drawn = dict(reservation.drawn)
            self._by_owner[owner] = replace(
                reservation, amounts=dict(amounts), drawn=drawn, expected_bytes=expected_bytes, parts=parts
            )

    def _of_process(self, owner: str, pid: int | None) -> Reservation | None:
        """The reservation of `owner` if it is of this process; None for `pid`: of any."""
        reservation = self._by_owner.get(owner)
        return reservation if reservation is not None and pid in {None, reservation.pid} else None

    def release(self, owner: str) -> None:
        """Remove a runner's reservation."""
        with self._lock:
            self._by_owner.pop(owner, None)

    def available(self, device_id: str, machine: Machine | None = None, exclude: str = "") -> int:
        """Bytes that a new load may take on one device now: free minus reserve minus reservations."""
        machine = machine or self._read_machine()
        device = machine.device(device_id)
        if device is None:
            return 0
        with self._lock:
            return _on_device(device, self._free(machine, exclude))

    def reservations(self) -> tuple[Reservation, ...]:
        """Current reservations, with new measurements if the process is known: at the first one of each process."""
        with self._lock:
            reservations = tuple(self._by_owner.values())
        rows: list[Reservation] = []
        pids: set[int] = set()
        for row in reservations:
            if row.pid is None:
                rows.append(row)
            elif row.pid in pids:
                rows.append(replace(row, measured=None))
            else:
                pids.add(row.pid)
                rows.append(replace(row, measured=self._measure(row.pid) or row.measured))
        return tuple(rows)

    def ram_in_use(self, machine: Machine) -> int:
        """RAM that the loads hold now, with what drivers of integrated GPUs map of it."""
        return sum(
            row.measured.pss_bytes + sum(_mapped(row, machine).values())
            for row in self.reservations()
            if row.measured is not None
        )

    def pools(self, machine: Machine | None = None) -> tuple[Pool, ...]:
        """The machine's current pools."""
        return pools(machine or self._read_machine())

    def _free(self, machine: Machine, exclude: str) -> dict[str, int]:
        """Pool id → bytes that a new load may take; also what drivers let integrated GPUs map of RAM."""
        capacities, free, unread = _without_loads(machine)
        resident: dict[str, int] = {}
        for reservation in self._by_owner.values():
            memory = self._own_memory(reservation, resident, is_own=reservation.owner == exclude)
            is_loaded, mapped = reservation.measured is not None, _mapped(reservation, machine)
            on_gpus = sum(mapped.values()) if is_loaded else 0
            drawn = {**reservation.drawn, **mapped}
            of_process = max(0, drawn.pop(RAM, 0) - on_gpus)
            # What drivers count as used by this load. A load that replaces it can use that, and its process's part.
            counted = {pool for pool in drawn.keys() & free.keys() if is_loaded and pool not in unread}
            if reservation.owner == exclude:
                back = {pool: drawn[pool] for pool in counted}
                back[RAM] = on_gpus + (memory.anonymous_bytes if memory is not None else 0)
                for pool, num_bytes in back.items():
                    free[pool] = min(capacities.get(pool, 0), free.get(pool, 0) + num_bytes)
                continue
            # Measured again: a cache becomes resident as it fills, so less is outstanding than at the load.
            free[RAM] = free.get(RAM, 0) - _outstanding(reservation, of_process, memory)
            for pool in (drawn.keys() & free.keys()) - counted:
                free[pool] -= drawn[pool]
        return {pool: max(0, num_bytes) for pool, num_bytes in free.items()}

    def _own_memory(
        self, reservation: Reservation, resident: dict[str, int], *, is_own: bool
    ) -> ProcessMemory | None:
        """Memory of a reservation's process, less what its earlier reservations have been compared with.

        `resident`: a process's own bytes of which that is not so. `is_own`: the reservation is to be replaced.
        """
        now = self._measure(reservation.pid) if reservation.pid else None
        memory = now if is_own else now or reservation.measured
        if memory is None:
            return None
        process = str(reservation.pid or reservation.owner)
        own_bytes = resident.get(process, memory.anonymous_bytes)
        amount = reservation.amounts.get("cpu")
        resident[process] = 0 if is_own else max(0, own_bytes - (amount.anonymous_bytes if amount else 0))
        return replace(memory, anonymous_bytes=own_bytes)

    def _draw(self, machine: Machine, amounts: Mapping[str, DeviceBytes], exclude: str) -> dict[str, int]:
        free = self._free(machine, exclude)
        drawn: dict[str, int] = {}
        for device_id, amount in amounts.items():
            device = machine.device(device_id)
            needed = amount.total_bytes
            if device is None:
                raise PoolExceeded(device_id, needed, 0, {})
            available = _on_device(device, free)
            if needed > available:
                raise PoolExceeded(
                    device_id, needed, available, {r.owner: r.predicted_bytes for r in self._by_owner.values()}
                )
            for pool in _drawn_pools(device):
                part = min(needed, free.get(pool, 0))
                free[pool] = free.get(pool, 0) - part
                drawn[pool] = drawn.get(pool, 0) + part
                needed -= part
        return drawn


def _drawn_pools(device: Device) -> tuple[str, ...]:
    """Pools that a device uses, first choice first."""
    if device.kind in {"dgpu", "remote"}:
        return (pool_of(device),)
    return (pool_of(device), RAM) if device.kind == "igpu" else (RAM,)


def _on_device(device: Device, free: Mapping[str, int]) -> int:
    """Free memory of a device; of a unified GPU its carve-out, and RAM up to the driver's limit."""
    if device.kind != "igpu":
        return sum(free.get(pool, 0) for pool in _drawn_pools(device))
    return free.get(pool_of(device), 0) + min(free.get(RAM, 0), free.get(_mapped_by(device), free.get(RAM, 0)))


def _mapped_by(device: Device) -> str:
    """Name of the part of RAM that an integrated GPU's driver lets it map (GTT, DXGI shared memory)."""
    return f"mapped:{device.id}"


def _without_loads(machine: Machine) -> tuple[dict[str, int], dict[str, int], set[str]]:
    """By pool, and by what integrated GPUs may map: capacity and free bytes; and those whose use nobody reports."""
    capacities = {pool.id: pool.capacity_bytes - pool.reserve_bytes for pool in pools(machine)}
    free = {pool.id: pool.free_bytes - pool.reserve_bytes for pool in pools(machine)}
    unread = set()
    for device in machine.devices:
        memory = device.memory
        if device.kind in {"igpu", "dgpu"} and memory.dedicated_used_bytes is None:
            unread.add(pool_of(device))
        if device.kind == "igpu" and memory.shared_limit_bytes is not None:
            name, used = _mapped_by(device), memory.shared_used_bytes
            capacities[name], free[name] = memory.shared_limit_bytes, memory.shared_limit_bytes - (used or 0)
            unread |= {name} if used is None else set()
    return capacities, free, unread


def _mapped(reservation: Reservation, machine: Machine) -> dict[str, int]:
    """RAM that integrated GPUs take for a load, beyond their carve-outs, by `_mapped_by`.

    After the load the system's free memory is without it, but the process does not show it. Source: Syllo/nvtop,
    pull request 492: a model of 24 GiB is in the driver's accounts of the process (drm-memory-gtt) only. Apple's
    GPUs and software renderers use memory of the process.
    """
    by_driver: dict[str, int] = {}
    for device_id, amount in reservation.amounts.items():
        device = machine.device(device_id)
        if device is not None and device.kind == "igpu" and device.vendor not in IN_PROCESS:
            by_driver[_mapped_by(device)] = max(
                0, amount.anonymous_bytes - reservation.drawn.get(pool_of(device), 0)
            )
    return by_driver


def _outstanding(reservation: Reservation, drawn: int, memory: ProcessMemory | None) -> int:
    """RAM that is reserved but not yet subtracted from the system's free memory.

    A system counts mapped file pages as available, because it may drop them; a model in use needs them.
    """
    if memory is None:
        return drawn
    mapped = sum(amount.mapped_bytes for amount in reservation.amounts.values())
    anonymous = max(0, drawn - mapped)
    return max(0, anonymous - memory.anonymous_bytes) + min(mapped, drawn)


# Vendors of integrated GPUs whose buffers are memory of the process that allocates them.
IN_PROCESS = frozenset({"Apple", "software"})

# The physical memory of a machine as pools that are never counted twice.

RAM = "ram"


def pools(machine: Machine) -> tuple[Pool, ...]:
    """OS-visible RAM, firmware carve-outs, VRAM. Together never more than RAM plus dedicated VRAM."""
    ram = machine.memory
    total = ram.total_bytes or 0
    capacity = min(total, ram.limit_bytes) if ram.limit_bytes is not None else total
    free = min(ram.available_bytes or 0, capacity)
    pools_here = [Pool(RAM, "ram", capacity, free, reserve_bytes(ram))]
    spare = max(0, (ram.installed_bytes or total) - total)
    for device in machine.devices:
        memory = device.memory
        dedicated = memory.dedicated_bytes or 0
        if device.kind == "igpu" and dedicated:
            size = min(dedicated, spare)
            spare -= size
            used = min(memory.dedicated_used_bytes or 0, size)
            if size:
                pools_here.append(Pool(pool_of(device), "carve_out", size, size - used, 0))
        elif device.kind == "dgpu" and memory.budget_bytes:
            size = memory.budget_bytes
            open_bytes = size if memory.available_bytes is None else min(size, memory.available_bytes)
            pools_here.append(Pool(pool_of(device), "vram", size, open_bytes, vram_reserve_bytes(size)))
        elif device.kind == "remote" and memory.physical_bytes:
            free_there = memory.available_bytes or 0  # already reduced by its own ledger and reserve
            pools_here.append(Pool(pool_of(device), "remote", memory.physical_bytes, free_there, 0))
    return tuple(pools_here)


def pool_of(device: Device) -> str:
    """The pool that belongs to one device alone; the CPU and NPUs have none."""
    if device.kind == "remote":
        return device.id
    prefix = "vram" if device.kind == "dgpu" else "carve_out"
    return f"{prefix}:{device.id}"


def vram_reserve_bytes(size: int) -> int:
    """VRAM left for the desktop and for what backends allocate in addition to their buffers.

    Source: llama.cpp common/fit.cpp leaves 1 GiB per device; an eighth on small cards.
    """
    return min(1 << 30, size // 8)
