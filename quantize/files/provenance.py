"""Stores how a quantized file was made: in a metadata value of fixed length, and in a report next to the file."""

from pathlib import Path

import msgspec

from devices.msgspec_lock import learned

KEY = "tessera.quantization"
# Space for the JSON below; padded with spaces, so that measurements can be added afterwards.
_BYTES = 768
_SUFFIX = ".tessera.json"


def report_path(out: Path) -> Path:
    """Path of a file's report."""
    return out.with_name(f"{out.name.removesuffix('.gguf')}{_SUFFIX}")


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hashes, measurements and settings; KL divergences in nats per token on held-out text.

    `smoothed` means that channels of the inputs are scaled, so LoRA adapters made for the source must be scaled
    too. `gate` is the quality gate's task, and the cases passed by the source and by the file (`certify 31>30/34`).
    """

    version: int = 1
    tool: str = ""
    tier: str = ""
    rounding: str = ""
    smoothed: bool = False
    goal: str = ""
    source_sha256: str = ""
    imatrix_sha256: str = ""
    evidence_sha256: str = ""
    plan_sha256: str = ""
    predicted_kld: float | None = None
    kld_mean: float | None = None
    kld_p99: float | None = None
    stock_mix: str = ""
    stock_kld_mean: float | None = None
    gate: str = ""

    def encode(self) -> bytes:
        """JSON padded to the fixed length. Raises: ValueError: it does not fit."""
        rounded = {
            field: float(f"{value:.5g}")
            for field in ("predicted_kld", "kld_mean", "kld_p99", "stock_kld_mean")
            if (value := getattr(self, field)) is not None
        }
        raw = msgspec.json.encode(msgspec.structs.replace(self, **rounded))
        if len(raw) > _BYTES:
            raise ValueError(f"{len(raw)} bytes of provenance; there is room for {_BYTES}")
        return raw.ljust(_BYTES)


def blank() -> bytes:
    """The reserved space before measurements exist."""
    return b"{}".ljust(_BYTES)


def read_provenance(text: str) -> Provenance | None:
    """Decode the metadata value; None if it is not valid."""
    try:
        return msgspec.json.decode(text.encode(), type=learned(Provenance))
    except (ValueError, RecursionError):
        return None


def provenance_bytes() -> int:
    """Maximum size of the entry in a header, with its key, type, length and alignment."""
    return _BYTES + len(KEY) + 8 + 4 + 8 + 32
