"""A plan that travels: what it takes to make a file again from the same source, and what was measured of it."""

import msgspec

from quantize.files.provenance import Provenance
from quantize.types import Goal, Interval, Rounding, Tier

FORMAT = "tessera-plan"
VERSION = 2
# Raised whenever the same plan would make other bytes: another way of collecting moments or of rounding.
RECIPE = 3


class PlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Types and recipe of one file, with evidence.

    `types` by tensor; those in `plain` are rounded by ggml though the rest is by GPTQ. `max_tokens` and
    `calibration_sha256` decide the second moments, `imatrix_sha256` is of an importance matrix that was given
    (empty: measured, or none), `arithmetic` what sums were computed with (empty: what the maker's processor does
    best). `kld` and `ratio` (to `stock_mix`) were measured on held-out text; `file_sha256` is of the finished file.
    """

    format: str = FORMAT
    version: int = VERSION
    recipe: int = RECIPE
    architecture: str
    source_sha256: str
    goal: Goal
    tier: Tier
    rounding: Rounding
    max_tokens: int
    calibration_sha256: str
    imatrix_sha256: str = ""
    arithmetic: str = ""
    types: dict[str, str]
    plain: tuple[str, ...] = ()
    best_stock: str | None = None
    damage: float
    kld: Interval
    ratio: Interval | None = None
    stock_mix: str = ""
    file_bytes: int
    file_sha256: str
    provenance: Provenance
