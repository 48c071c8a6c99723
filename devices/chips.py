"""Capabilities of CPUs and GPUs from a table of published facts (chips.json), and the row of each device."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec.structs import replace

from devices.msgspec_lock import learned
from devices.types import Device, Machine, Memory, Runtime

TABLE: Final = Path(__file__).with_name("chips.json")
# Start of `Memory.bandwidth_source` if nothing on the machine reports the bandwidth.
USUAL: Final = "usual for"
# Evidence key of the number of a GPU's units: Apple's cores, AMD's compute units.
GPU_CORES: Final = "gpu-core-count"
# Evidence key of a card's PCI Express link, in GB/s.
LINK: Final = "PCI Express link, GB/s"

_APPLE: Final = re.compile(r"(?:apple )?m(\d{1,2})((?: pro| max| ultra)?)")
# The PCI database's word for what drivers call "Laptop GPU", as in "GeForce RTX 4060 Max-Q / Mobile".
_MOBILE: Final = re.compile(r"(?:max-q / mobile|mobile / max-q|mobile)\b")

Positive = Annotated[float, msgspec.Meta(gt=0)]
Confidence = Literal["high", "medium", "low"]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU. Peaks are dense, in 10^12 operations/s; `matrix` lists backends that use its matrix units."""

    id: Text
    name: Text
    vendor: Text
    kind: Literal["igpu", "dgpu"]
    family: Text
    ids: tuple[str, ...]
    names: tuple[str, ...]
    units: Annotated[int, msgspec.Meta(gt=0)] | None
    unit: str
    boost_ghz: Positive
    fp16_tflops: Positive | None
    fp16_matrix_tflops: Positive | None
    int8_dp4a_tops: Positive | None
    int8_matrix_tops: Positive | None
    bandwidth_gbs: Positive | None
    matrix: tuple[str, ...]
    int_dot: bool | None
    confidence: Confidence
    sources: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]

    def has_matrix(self, backend: str, system: str) -> bool:
        """Whether this backend computes with its matrix units on this system."""
        return backend in self.matrix or f"{backend}/{system}" in self.matrix

    def is_related(self, other: "Gpu") -> bool:
        """Whether both are of one family and have the same bandwidth."""
        return (self.family, self.bandwidth_gbs) == (other.family, other.bandwidth_gbs)

    def is_at_least(self, other: "Gpu") -> bool:
        """Whether it is a related chip with as many units and as high peaks, or more."""
        pairs = zip(self.sizes, other.sizes, strict=True)
        return self.is_related(other) and all((own or 0) >= (its or 0) for own, its in pairs)

    @property
    def sizes(self) -> tuple[float | None, ...]:
        """Its number of units and its peaks."""
        return self.units, self.fp16_tflops, self.fp16_matrix_tflops, self.int8_dp4a_tops, self.int8_matrix_tops


class CpuKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of CPU. `reads_gbs`: read by all cores together; `bandwidth_gbs`: its usual memory.

    `ghz` is with all fast cores busy; `slow_cores`: it has only efficiency cores. `unpack_ns`: nanoseconds in which
    one of its threads multiplies by a quantized weight, `rows_unpack_ns`: of a type that llama.cpp computes row by
    row, and `thread_gbs`: GB/s that one reads, if not as usual.
    """

    id: Text
    name: Text
    match: str
    ghz: Positive
    reads_gbs: Positive
    bandwidth_gbs: Positive
    slow_cores: bool = False
    unpack_ns: Positive | None = None
    rows_unpack_ns: Positive | None = None
    thread_gbs: Positive | None = None
    confidence: Confidence
    sources: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]


class Chips(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table."""

    about: tuple[str, ...]
    date: str
    gpus: tuple[Gpu, ...]
    cpus: tuple[CpuKind, ...]


@cache
def chips() -> Chips:
    """The table that ships with Tessera."""
    return read_chips(TABLE.read_bytes())


def read_chips(content: bytes) -> Chips:
    """A table from JSON. Raises: ValueError, re.error: a row does not match the schema."""
    chips = msgspec.json.decode(content, type=learned(Chips))
    ids = [*(row.id for row in chips.gpus), *(row.id for row in chips.cpus)]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ValueError(f"these ids are there twice: {', '.join(twice)}")
    if not chips.cpus or chips.cpus[-1].match:
        raise ValueError("the last CPU has to match every name")
    for row in chips.cpus:
        re.compile(row.match)
    for gpu in chips.gpus:
        for pci_id in gpu.ids:
            _span(pci_id)
    return chips


@cache
def gpu(chip: str | None) -> Gpu | None:
    """The row of a GPU by its id."""
    return next((row for row in chips().gpus if row.id == chip), None)


@cache
def cpu_kind(name: str) -> CpuKind:
    """The row of a CPU by its id or the name that the system reports."""
    rows = chips().cpus
    by_id = next((row for row in rows if row.id == name), None)
    return by_id or next(row for row in rows if re.search(row.match, name, re.IGNORECASE))


def apple_gpus(cpu_name: str) -> tuple[Gpu, ...]:
    """The GPUs that an Apple chip of this name is sold with, smallest first; of a newer one its predecessor's."""
    own = cpu_name.strip().lower()
    match = _APPLE.fullmatch(own)
    older = (f"apple m{generation}{match[2]}" for generation in range(int(match[1]), 0, -1)) if match else ()
    for name in (own, *older):
        rows = [row for row in chips().gpus if name in row.names]
        if rows:
            return tuple(sorted(rows, key=lambda row: row.units or 0))
    return ()


def with_chips(machine: Machine) -> Machine:
    """`machine` with each device's chip; unknown bandwidths and units are taken from the chip."""
    cpu_name = next((d.name for d in machine.devices if d.kind == "cpu"), "")
    kind = cpu_kind(cpu_name)
    usual = kind if kind.match and machine.environment != "vm" else None
    devices = tuple(_with_chip(device, cpu_name, usual, machine.system) for device in machine.devices)
    return replace(machine, devices=devices)


def _with_chip(device: Device, cpu_name: str, usual: CpuKind | None, system: str) -> Device:
    if device.kind == "cpu":
        kind = cpu_kind(cpu_name)
        memory = _with_bandwidth(device.memory, usual.bandwidth_gbs if usual else None, usual)
        return replace(device, chip=kind.id, memory=memory)
    if device.kind == "npu" and usual is not None:
        return replace(device, memory=_with_bandwidth(device.memory, usual.bandwidth_gbs, usual))
    if device.kind not in {"igpu", "dgpu"} or device.vendor == "software":
        return device
    row = gpu_of(device, cpu_name)
    source: Gpu | CpuKind | None = row
    gbs = row.bandwidth_gbs if row is not None else None
    if device.memory.unified and usual is not None and (gbs is None or usual.bandwidth_gbs < gbs):
        gbs, source = usual.bandwidth_gbs, usual
    memory = _with_bandwidth(device.memory, gbs, source)
    if row is None:
        return replace(device, chip=None, memory=memory)
    runtimes = tuple(_with_units(runtime, row, system) for runtime in device.runtimes)
    return replace(device, chip=row.id, memory=memory, runtimes=runtimes)


def _with_units(runtime: Runtime, row: Gpu, system: str) -> Runtime:
    """Units that the backend did not report for the device, from the table."""
    matrix, dot = runtime.matrix_units, runtime.int_dot
    return replace(
        runtime,
        matrix_units=row.has_matrix(runtime.backend, system) if matrix is None else matrix,
        int_dot=row.int_dot if dot is None else dot,
    )


def _with_bandwidth(memory: Memory, gbs: float | None, row: Gpu | CpuKind | None) -> Memory:
    is_known = memory.bandwidth_gbs is not None and not memory.bandwidth_source.startswith(USUAL)
    if is_known or gbs is None or row is None:
        return memory
    return replace(memory, bandwidth_gbs=gbs, bandwidth_source=f"{USUAL} {row.name}")


def gpu_of(device: Device, cpu_name: str) -> Gpu | None:
    """The row of a GPU: by PCI id, else by target; several are narrowed by name, then the smallest is used.

    Lists of ids are incomplete: a name that no row of the id has is looked up among all rows of its target.
    """
    rows = [row for row in chips().gpus if (row.vendor, row.kind) == (device.vendor, device.kind)]
    own_text = _plain(" ".join([device.name, *(runtime.description for runtime in device.runtimes)]))
    texts = (own_text, _plain(cpu_name)) if device.kind == "igpu" else (own_text,)
    by_id = _by_id(rows, device.pci_id, device.arch)
    targets = {identity for row in by_id for identity in row.ids if ":" not in identity}
    relatives = [row for row in rows if targets.intersection(row.ids)]
    groups = (_by_name(group, text) for text in texts for group in (by_id or rows, relatives))
    apple = apple_gpus(cpu_name) if device.vendor == "Apple" else ()
    # The name of an id may cover several chips ("Radeon 660M/680M"); the CPU's name says which one.
    matches: Sequence[Gpu] = apple or min((group for group in groups if group), key=len, default=by_id)
    for group in (matches, by_id, relatives):
        if sized := [row for row in group if str(row.units) == _counted(device)]:
            return _of_size(sized, device)
    return _of_size(matches, device) if matches else None


def _plain(name: str) -> str:
    """A name in lower case, without trade marks and with the drivers' words for a GPU of a laptop."""
    return _MOBILE.sub("laptop gpu", name.lower().replace("(tm)", "").replace("(r)", ""))


def _by_id(rows: Sequence[Gpu], pci_id: str | None, arch: str | None) -> list[Gpu]:
    exact = [row for row in rows if pci_id and pci_id in row.ids]
    ranged = [row for row in rows if pci_id and any(_holds(ids, pci_id) for ids in row.ids)]
    return exact or ranged or [row for row in rows if arch and arch in row.ids]


def _span(ids: str) -> tuple[str, int, int] | None:
    """Vendor, first and last device of an entry `8086:4680-4693`; None for a target or a single id."""
    vendor, _, devices = ids.partition(":")
    first, dash, last = devices.partition("-")
    return (vendor, int(first, 16), int(last, 16)) if dash else None


def _holds(ids: str, pci_id: str) -> bool:
    span, (vendor, _, device) = _span(ids), pci_id.partition(":")
    return span is not None and vendor == span[0] and span[1] <= int(device, 16) <= span[2]


def _by_name(rows: Iterable[Gpu], text: str) -> list[Gpu]:
    """Rows whose longest name is in the text: "rtx 4060 ti" before "rtx 4060"."""
    matches: list[tuple[int, Gpu]] = []
    for row in rows:
        lengths = [len(name) for name in row.names if name in text and _word(name).search(text)]
        if lengths:
            matches.append((max(lengths), row))
    longest = max((length for length, _ in matches), default=0)
    return [row for length, row in matches if length == longest]


@cache
def architectures(text: str) -> tuple[str, ...]:
    """AMD's names, such as gfx1151, of the chips that a text names, such as "Radeon 8060S"."""
    rows = _by_name(chips().gpus, text.lower())
    return tuple(sorted({identity for row in rows for identity in row.ids if identity.startswith("gfx")}))


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])")


def _counted(device: Device) -> str:
    """The number of units that the system reports; empty if it reports none."""
    return next((e.value for e in device.evidence if e.key == GPU_CORES), "")


def _of_size(rows: Sequence[Gpu], device: Device) -> Gpu:
    """Among chips that differ only in size, the one with the reported number of units, else the smallest."""
    exact = [row for row in rows if str(row.units) == _counted(device)]
    gbs = device.memory.bandwidth_gbs
    alike = [row for row in rows if row.bandwidth_gbs is not None and row.bandwidth_gbs == gbs]
    return min(exact or alike or rows, key=lambda row: (row.units or 0, row.fp16_tflops or 0))
