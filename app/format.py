"""Numbers as people read them."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TENTHS_BELOW = 100


def size(num_bytes: int | None) -> str:
    """Bytes in binary units with one decimal where it matters: `7.4 GiB`, `512 MiB`; `unknown` for None."""
    if num_bytes is None:
        return "unknown"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(num_bytes) >= unit:
            value = num_bytes / unit
            decimals = 1 if value < TENTHS_BELOW and unit != KIB else 0
            return f"{value:.{decimals}f} {name}"
    return f"{num_bytes} B"
