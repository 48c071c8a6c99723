"""A portable plan: everything needed to reproduce a file from the same source, and its measured quality."""

import msgspec

from quantize.files.provenance import Provenance
from quantize.types import Interval, Rounding, SizeTarget, Tier

FORMAT = "tessera-plan"
VERSION = 2
# Increase when the same plan would produce other bytes, for example after a change in Hessians or rounding.
RECIPE = 4


class PlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Types and settings of one file, with its measurements.

    `types` by tensor; ggml rounds those in `plain`, GPTQ the others, or they
    lie on a grid of their type. `max_tokens` and `calibration_sha256`
    determine the Hessians. `imatrix_sha256` is the hash of a given importance matrix (empty: measured, or none).
    `arithmetic` is the arithmetic of sums (empty: the fastest on the CPU that made the plan). `kld` and `ratio` (to
    `stock_mix`) were measured on held-out text; `file_sha256` is the hash of the finished file.
    """

    format: str = FORMAT
    version: int = VERSION
    recipe: int = RECIPE
    architecture: str
    source_sha256: str
    goal: SizeTarget
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
