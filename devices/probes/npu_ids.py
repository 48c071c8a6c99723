"""NPU ids: a class code alone is never enough, for Intel laptops carry other functions of the same class."""

import msgspec


class NpuId(msgspec.Struct, frozen=True):
    """A known NPU: generation, name, the Linux driver it needs, and whether language models run on it."""

    vendor: str
    name: str
    generation: str
    driver: str
    since_kernel: tuple[int, int]
    llm: bool


def _amd(name: str, generation: str, *, llm: bool) -> NpuId:
    return NpuId("AMD", name, generation, "amdxdna", (6, 14), llm)


def _intel(name: str, since: tuple[int, int] = (6, 3)) -> NpuId:
    return NpuId("Intel", name, "NPU", "intel_vpu", since, llm=True)


# (vendor, device): what it is. AMD's 17f0 is told apart by revision.
TABLE: dict[tuple[int, int], NpuId] = {
    (0x1022, 0x1502): _amd("NPU (Phoenix/Hawk Point)", "XDNA1", llm=False),
    (0x1022, 0x17F0): _amd("NPU", "XDNA2", llm=True),
    (0x1022, 0x17F1): _amd("NPU", "XDNA2", llm=True),
    (0x1022, 0x17F2): _amd("NPU", "XDNA2", llm=True),
    (0x1022, 0x1B0A): _amd("NPU", "XDNA2 or newer", llm=True),
    (0x1022, 0x1B0B): _amd("NPU", "XDNA2 or newer", llm=True),
    (0x1022, 0x1B0C): _amd("NPU", "XDNA2 or newer", llm=True),
    (0x8086, 0x7D1D): _intel("AI Boost (Meteor Lake)"),
    (0x8086, 0xAD1D): _intel("AI Boost (Arrow Lake)"),
    (0x8086, 0x643E): _intel("AI Boost (Lunar Lake)", (6, 11)),
    (0x8086, 0xB03E): _intel("AI Boost (Panther Lake)", (6, 14)),
    (0x8086, 0xFD3E): _intel("AI Boost (Wildcat Lake)", (6, 18)),
}
AMD_REVISIONS = {0x10: "NPU (Strix Point)", 0x11: "NPU (Strix Halo)", 0x20: "NPU (Krackan Point)"}
# A function bound to one of these is an NPU whatever its id, so a model newer than the table is still found.
DRIVERS = {"amdxdna": "AMD", "intel_vpu": "Intel"}
VIRTUAL_FUNCTIONS = frozenset({(0x1022, 0x17F3)})


def npu_id(vendor: int, device: int, revision: int | None, driver: str | None) -> NpuId | None:
    """The NPU a PCI function is, by id or by the driver bound to it; None when it is something else."""
    if (vendor, device) in VIRTUAL_FUNCTIONS:
        return None
    known = TABLE.get((vendor, device))
    if known is not None:
        name = AMD_REVISIONS.get(revision or 0) if device == 0x17F0 else None
        return NpuId(
            known.vendor, name or known.name, known.generation, known.driver, known.since_kernel, known.llm
        )
    if driver in DRIVERS:
        return NpuId(DRIVERS[driver], "NPU", "unknown", driver, (0, 0), llm=True)
    return None
