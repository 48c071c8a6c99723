"""SMBIOS memory devices, written as the specification lays them out."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from devices.smbios import memory_modules


def module(width=64, size=0x4000, extended_mib=0, speed=5600, configured=5200, form=0x0D, kind=0x22) -> bytes:
    body = bytearray(0x28)
    body[0x0E], body[0x12] = form, kind
    body[0], body[1] = 17, len(body)
    struct.pack_into("<HH", body, 0x0A, width, size)
    struct.pack_into("<H", body, 0x15, speed)
    struct.pack_into("<I", body, 0x1C, extended_mib)
    struct.pack_into("<H", body, 0x20, configured)
    return bytes(body) + b"DIMM 0\0Vendor\0\0"


END = bytes([127, 4, 0, 0]) + b"\0\0"
BIOS = bytes([0, 0x18]) + bytes(0x16) + b"Vendor\0\0"


def test_populated_slots_with_their_configured_speed():
    table = BIOS + module() + module(size=0) + module(size=0x7FFF, extended_mib=65536) + END
    assert memory_modules(table) == [
        {"data_width_bits": 64, "speed_mts": 5200, "size_bytes": 16 << 30, "soldered": 0},
        {"data_width_bits": 64, "speed_mts": 5200, "size_bytes": 64 << 30, "soldered": 0},
    ]


def test_low_power_memory_and_rows_of_chips_are_soldered():
    table = BIOS + module(kind=0x23) + module(form=0x0B) + module() + END
    assert [found["soldered"] for found in memory_modules(table)] == [1, 1, 0]


def test_unknown_width_and_speed_are_zero():
    assert memory_modules(module(width=0xFFFF, speed=0xFFFF, configured=0) + END)[0]["data_width_bits"] == 0


def test_sizes_may_be_in_kibibytes():
    assert memory_modules(module(size=0x8000 | 1024) + END)[0]["size_bytes"] == 1 << 20


@given(st.binary(max_size=400))
def test_any_bytes_end_without_error(table):
    memory_modules(table)


@given(st.integers(0, 200))
def test_a_cut_table_gives_what_came_before(cut):
    assert len(memory_modules((BIOS + module() + module() + END)[:cut])) <= 2
