"""Facts from PCI ids of GPUs: integrated or not, instruction-set target, name."""

import re
from typing import Final

import msgspec

VENDORS = {
    0x1002: "AMD",
    0x1022: "AMD",
    0x8086: "Intel",
    0x10DE: "NVIDIA",
    0x17CB: "Qualcomm",
    0x106B: "Apple",
    0x4D4F4351: "Qualcomm",  # "QCOM", as in ACPI on Windows
}
# Display functions that no kernel here can use: virtual and server-management adapters.
NOT_FOR_COMPUTE = frozenset({0x1AF4, 0x1234, 0x15AD, 0x1013, 0x1B36, 0x1414, 0x102B, 0x1A03, 0x80EE, 0x1D0F})


class GpuId(msgspec.Struct, frozen=True):
    """A known id: marketing name, target architecture, whether it shares the CPU's memory."""

    name: str
    arch: str | None
    integrated: bool


def _apu(name: str, arch: str) -> GpuId:
    return GpuId(name, arch, integrated=True)


TABLE: dict[tuple[int, int], GpuId] = {
    (0x1002, 0x1586): _apu("Radeon 8050S/8060S (Strix Halo)", "gfx1151"),
    (0x1002, 0x150E): _apu("Radeon 880M/890M (Strix Point)", "gfx1150"),
    (0x1002, 0x1114): _apu("Radeon 840M/860M (Krackan Point)", "gfx1152"),
    (0x1002, 0x1902): _apu("Radeon 820M/840M (Krackan Point)", "gfx1153"),
    (0x1002, 0x15BF): _apu("Radeon 760M/780M (Phoenix)", "gfx1103"),
    (0x1002, 0x15C8): _apu("Radeon 740M (Phoenix 2)", "gfx1103"),
    (0x1002, 0x1900): _apu("Radeon 780M (Hawk Point)", "gfx1103"),
    (0x1002, 0x1901): _apu("Radeon 740M (Hawk Point 2)", "gfx1103"),
    (0x1002, 0x1681): _apu("Radeon 660M/680M (Rembrandt)", "gfx1035"),
    (0x1002, 0x164E): _apu("Radeon Graphics (Raphael)", "gfx1036"),
    (0x1002, 0x13C0): _apu("Radeon Graphics (Granite Ridge)", "gfx1036"),
    (0x1002, 0x1506): _apu("Radeon 610M (Mendocino)", "gfx1037"),
    (0x1002, 0x163F): _apu("Radeon Graphics (Van Gogh)", "gfx1033"),
    (0x1002, 0x1435): _apu("Radeon Graphics (Sephiroth)", "gfx1033"),
    (0x1002, 0x1636): _apu("Radeon Vega (Renoir)", "gfx90c"),
    (0x1002, 0x1638): _apu("Radeon Vega (Cezanne)", "gfx90c"),
    (0x1002, 0x164C): _apu("Radeon Vega (Lucienne)", "gfx90c"),
    (0x1002, 0x15E7): _apu("Radeon Vega (Barcelo)", "gfx90c"),
    (0x1002, 0x15D8): _apu("Radeon Vega (Picasso)", "gfx902"),
    (0x1002, 0x15DD): _apu("Radeon Vega (Raven)", "gfx902"),
    (0x1002, 0x13FE): _apu("BC-250 (Cyan Skillfish)", "gfx1013"),
    (0x10DE, 0x2E12): _apu("GB10", "sm_121"),
    (0x10DE, 0x2E03): _apu("RTX Spark N1X", "sm_121"),
    (0x10DE, 0x2E06): _apu("RTX Spark N1X", "sm_121"),
}
# AMD's targets that are integrated GPUs only, whatever their id.
INTEGRATED_TARGETS = frozenset(c.arch for c in TABLE.values() if c.integrated and (c.arch or "").startswith("gfx"))
_INTEL_FAMILIES: tuple[tuple[frozenset[int], str, str], ...] = (
    (frozenset({0x64A0, 0x6420, 0x64B0}), "Arc Graphics (Lunar Lake)", "xe2-lpg"),
    (frozenset({0x7D55, 0x7D45, 0x7DD5, 0x7D40, 0x7D60}), "Arc Graphics (Meteor Lake)", "xe-lpg"),
    # Only Arrow Lake-H has matrix units here. Source: llama.cpp, pull request 24404.
    (frozenset({0x7D51, 0x7DD1}), "Arc Graphics (Arrow Lake-H)", "xe-lpg+"),
    (frozenset({0x7D67, 0x7D41, 0xB640}), "Intel Graphics (Arrow Lake)", "xe-lpg"),
    (frozenset({*range(0xB080, 0xB088), 0xB08F, 0xB090, 0xB0A0, 0xB0B0}), "Arc Graphics (Panther Lake)", "xe3-lpg"),
    (frozenset({0xFD80, 0xFD81}), "Intel Graphics (Wildcat Lake)", "xe3-lpg"),
    (frozenset({*range(0xE202, 0xE218), *range(0xE220, 0xE224)}), "Arc B-series (Battlemage)", "xe2-hpg"),
    (frozenset({*range(0x5690, 0x56C3)}), "Arc A-series (Alchemist)", "xe-hpg"),
    (
        frozenset({*range(0xA780, 0xA790), *range(0xA7A0, 0xA7AE), 0xA720, 0xA721}),
        "UHD/Iris Xe (Raptor Lake)",
        "xe-lp",
    ),
    (
        frozenset({*range(0x4680, 0x4694), *range(0x46A0, 0x46D5), 0x4626, 0x4628, 0x462A}),
        "UHD/Iris Xe (Alder Lake)",
        "xe-lp",
    ),
    (frozenset({*range(0x9A40, 0x9AFA)}), "Iris Xe (Tiger Lake)", "xe-lp"),
)
INTEL_DISCRETE_ARCHES = frozenset({"xe2-hpg", "xe-hpg"})
# Evidence key of a name that comes from an id only: it may stand for several chips, so a driver's name replaces it.
NAME_OF_ID: Final = "name of its PCI id"
_TRADE_MARK: Final = re.compile(r"\((?:R|TM|C)\)", re.IGNORECASE)
# Mesa adds its driver: "(RADV GFX1201)", "(NVK AD107)". Intel's, such as "(LNL)", tells chips apart and stays.
_DRIVER: Final = re.compile(r" \((?:RADV|NVK) [A-Z0-9_]+\)$")


def plain_name(name: str) -> str:
    """A GPU's name without trademark signs, which drivers write as letters in parentheses."""
    return _DRIVER.sub("", " ".join(_TRADE_MARK.sub("", name).split()))


def product_name(name: str) -> str:
    """What is sold, of an entry of the PCI database: the part in brackets of `Navi 48 [Radeon RX 9070]`."""
    bracketed = re.search(r"\[(.+)\]$", name)
    return bracketed[1] if bracketed else name


def gpu_id(vendor: int, device: int) -> GpuId | None:
    """The facts of an id in the tables; None if it is unknown."""
    if vendor == 0x8086:
        for ids, name, arch in _INTEL_FAMILIES:
            if device in ids:
                return GpuId(name, arch, integrated=arch not in INTEL_DISCRETE_ARCHES)
        return None
    return TABLE.get((vendor, device))


def gfx_name(target_version: int) -> str | None:
    """AMD's target from KFD's decimal `gfx_target_version`: 110501 is gfx1151."""
    if not 70000 <= target_version < 1_000_000:
        return None
    return f"gfx{target_version // 10000}{target_version // 100 % 100:x}{target_version % 100:x}"
