"""What a load needs, part by part, and what each number is based on."""

from typing import Final, Literal

import msgspec

from engine.message_catalog.reasons import Reason

OptionKind = Literal["kv", "context", "parallel", "quantization", "offload", "unload", "combined"]
Basis = Literal["formula", "probe", "prior"]
PartName = Literal[
    "weights",
    "kv",
    "recurrent",
    "compute",
    "output",
    "projector",
    "draft",
    "overhead",
    "prefixes",
    "correction",
    "experts",
]


# Where layers lie that workers on other machines hold (engine_args.rpc): no memory of this machine.
WORKERS: Final = "workers"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one kind on one device. `mapped` of them are pages of the file, which others may share."""

    name: PartName
    device: str
    num_bytes: int
    mapped_bytes: int = 0
    basis: Basis = "formula"


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one load takes. `kv_layer_bytes` has the cache of each layer, whatever device holds it.

    `resident_bytes` is what the system will show of the runner's process in full use: less scratch memory that is
    never written, plus pages of the file that stay in memory although the weights in them were rewritten.
    """

    n_ctx: int
    kv_cells: int
    n_sequences: int
    type_k: str
    type_v: str
    n_gpu_layers: int
    parts: tuple[Part, ...]
    resident_bytes: int = 0
    kv_layer_bytes: tuple[int, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Over all devices."""
        return sum(part.num_bytes for part in self.parts)

    def device_bytes(self, device: str) -> int:
        """On one device."""
        return sum(part.num_bytes for part in self.parts if part.device == device)

    def mapped_bytes(self, device: str) -> int:
        """File pages among them."""
        return sum(part.mapped_bytes for part in self.parts if part.device == device)

    def part_bytes(self, name: PartName) -> int:
        """One kind over all devices."""
        return sum(part.num_bytes for part in self.parts if part.name == name)

    def by_purpose(self) -> dict[str, int]:
        """Bytes of each kind over all devices."""
        return {part.name: self.part_bytes(part.name) for part in self.parts}

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices in the order they first appear."""
        return tuple(dict.fromkeys(part.device for part in self.parts))


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What llama.cpp itself said in a load that allocated nothing.

    `compute_bytes` by backend device name; `overhead_bytes` is the process with its libraries and vocabulary;
    `untouched_bytes` is scratch memory set aside for drafts and idle sequences that ordinary use never writes.
    """

    kv_bytes: int
    recurrent_bytes: int
    output_bytes: int
    compute_bytes: dict[str, int]
    overhead_bytes: int
    untouched_bytes: int = 0
    seconds: float = 0.0


class FitOption(msgspec.Struct, frozen=True, kw_only=True):
    """A trade-off that needs less memory: what changes, and what the load then needs."""

    kind: OptionKind
    change: Reason
    needed_bytes: int
    saved_bytes: int
    cost: float


class FitReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to "does it fit": per device needed and available, and what to do if not."""

    model: str
    fits: bool
    need: Need
    available_bytes: dict[str, int]
    largest_context: int
    fit_options: tuple[FitOption, ...] = ()
    notes: tuple[Reason, ...] = ()
