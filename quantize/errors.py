"""Errors of the quantizer, with details as fields. `engine.core.errors` translates them."""

import errno
from typing import Final

import msgspec

from devices.errors import EnvironmentFault, InputFault

# Error numbers of a full disk, or of a user's full share of it.
NO_SPACE: Final = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})


class CannotRead(EnvironmentFault):
    """The system could not open or read a file; `reason` is the system's error message."""

    code = "unreadable"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}")
        self.path = path
        self.reason = reason


class DiskFull(EnvironmentFault):
    """A write failed or would fail for lack of space.

    Holds the bytes needed and the bytes free in the folder of `path`.
    """

    code = "disk_full"

    def __init__(self, path: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{needed_bytes} bytes needed at {path}, {free_bytes} free")
        self.path = path
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class BadFile(InputFault):
    """A model file violates its format or Tessera's limits; `offset` is the byte position of the error."""

    code = "bad_file"

    def __init__(self, path: str, reason: str, offset: int | None = None) -> None:
        where = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{path}: {reason}{where}")
        self.path = path
        self.reason = reason
        self.offset = offset


class IncompleteFile(BadFile):
    """The file ends too early.

    The complete file has `needed_bytes`. If the header itself is truncated, `known` is False and the file needs
    more.
    """

    code = "incomplete_file"

    def __init__(self, path: str, have_bytes: int, needed_bytes: int, *, known: bool = True) -> None:
        where = f"a complete file has {needed_bytes:,}" if known else "within its header"
        super().__init__(path, f"incomplete: it ends after {have_bytes:,} bytes, {where}")
        self.have_bytes = have_bytes
        self.needed_bytes = needed_bytes
        self.known = known


class MissingParts(IncompleteFile):
    """Some parts of a split model are missing; `missing` are their file names."""

    code = "missing_parts"

    def __init__(self, path: str, have_bytes: int, missing: tuple[str, ...]) -> None:
        super().__init__(path, have_bytes, have_bytes + 1)
        self.reason = f"parts missing: {len(missing)}, the first is {missing[0]}"
        self.args = (f"{path}: {self.reason}",)
        self.missing = missing


class RefusedFormat(BadFile):
    """A format that is always rejected, whatever the file contains (loading a pickle runs code)."""

    code = "refused_format"


class UnquantizableRows(msgspec.Struct, frozen=True):
    """Tensors that stay in 16 bits: their rows have `row_values` values, which `block_values` does not divide."""

    num_tensors: int
    row_values: int
    block_values: int

    def __str__(self) -> str:
        return (
            f"because {self.num_tensors} tensors stay in 16 bits: their rows of {self.row_values} values are not "
            f"divisible by {self.block_values}"
        )


class BudgetTooSmall(InputFault):
    """No quantization recipe fits: the smallest one needs `smallest_bytes`, the limit is `limit_bytes`.

    `rows`: the tensors that cannot be quantized, if there are any. `n_ctx`: the bytes are memory, for weights and a
    context of so many tokens; 0: they are a file's.
    """

    code = "budget_too_small"

    def __init__(
        self, limit_bytes: int, smallest_bytes: int, rows: UnquantizableRows | None = None, n_ctx: int = 0
    ) -> None:
        what = "bytes of memory; the smallest possible quantization and its context need"
        super().__init__(
            f"{limit_bytes} {what if n_ctx else 'bytes requested; the smallest possible quantization needs'} "
            f"{smallest_bytes}" + (f", {rows}" if rows else "")
        )
        self.rows = rows
        self.n_ctx = n_ctx
        self.limit_bytes = limit_bytes
        self.smallest_bytes = smallest_bytes


class InvalidOption(InputFault):
    """An option is invalid for this model. `param` names the option, `reason` gives the reason."""

    code = "bad_wish"

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{'The source cannot be used' if param == 'SOURCE' else param}: {reason}")
        self.param = param
        self.reason = reason


class UnsupportedModel(InputFault):
    """The model file is valid, but the converter does not support its kind.

    `reason` describes what is unsupported.
    """

    code = "unsupported_model"

    def __init__(self, path: str, reason: str, supported: tuple[str, ...] = ()) -> None:
        hint = f"; supported are {', '.join(supported)}" if supported else ""
        super().__init__(f"{path}: {reason}{hint}")
        self.path = path
        self.reason = reason
        self.supported = supported


class ConverterNeeded(UnsupportedModel):
    """Only llama.cpp's converter supports this architecture."""

    code = "converter_needed"

    def __init__(self, path: str, architecture: str) -> None:
        super().__init__(
            path, f"{architecture} is not supported by Tessera's converter; llama.cpp's converter supports it"
        )
        self.architecture = architecture


class BadWeights(InputFault):
    """A tensor has the wrong shape or contains invalid values (NaN or infinity)."""

    code = "bad_weights"

    def __init__(self, path: str, tensor: str, reason: str) -> None:
        super().__init__(f"{path}: tensor {tensor}: {reason}")
        self.path = path
        self.tensor = tensor
        self.reason = reason


class NotWritable(EnvironmentFault):
    """Cannot write at `path`; `reason` is the system's error message."""

    code = "not_writable"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be written: {reason}")
        self.path = path
        self.reason = reason


class SourceChanged(EnvironmentFault):
    """The source changed during the job; no output was written."""

    code = "source_changed"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} changed while it was read")
        self.path = path
