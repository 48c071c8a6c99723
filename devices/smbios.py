"""Memory modules in an SMBIOS table (DSP0134, structure type 17). Pure and bounded."""

MEMORY_DEVICE = 17
END_OF_TABLE = 127
UNKNOWN_WIDTH = 0xFFFF
# Types of low-power memory (LPDDR to LPDDR5), and the form factor "row of chips": soldered, not a module.
LOW_POWER_TYPES = frozenset({0x1B, 0x1C, 0x1D, 0x1E, 0x23})
ROW_OF_CHIPS = 0x0B


def memory_modules(table: bytes) -> list[dict[str, int]]:
    """Populated memory devices: data_width_bits, speed_mts, size_bytes, soldered. Stops at an invalid entry."""
    modules: list[dict[str, int]] = []
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        if length < 4 or at + length > len(table) or kind == END_OF_TABLE:
            break
        if kind == MEMORY_DEVICE:
            module = _module(table[at : at + length])
            if module:
                modules.append(module)
        end = table.find(b"\0\0", at + length)
        if end < 0:
            break
        at = end + 2
    return modules


def _module(record: bytes) -> dict[str, int] | None:
    def word(offset: int, width: int = 2) -> int:
        return int.from_bytes(record[offset : offset + width], "little") if offset + width <= len(record) else 0

    size = word(0x0C)
    if size in (0, 0xFFFF):
        return None
    if size == 0x7FFF:  # the real size did not fit and follows, in MiB
        size_bytes = (word(0x1C, 4) & 0x7FFFFFFF) << 20
    else:
        size_bytes = (size & 0x7FFF) << (10 if size & 0x8000 else 20)
    width, speed = word(0x0A), word(0x20) or word(0x15)
    return {
        "data_width_bits": 0 if width == UNKNOWN_WIDTH else width,
        "speed_mts": 0 if speed == 0xFFFF else speed,
        "size_bytes": size_bytes,
        "soldered": int(word(0x12, 1) in LOW_POWER_TYPES or word(0x0E, 1) == ROW_OF_CHIPS),
    }
