"""Errors of the quantizer: facts as fields; engine.core.errors has them for other languages."""

from devices.errors import EnvironmentFault, InputFault


class Unreadable(EnvironmentFault):
    """The system refused to open or read a file; `reason` is its own word for why."""

    code = "unreadable"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}")
        self.path = path
        self.reason = reason


class DiskFull(EnvironmentFault):
    """A write would not fit or did not: bytes needed and free in the folder of `path`."""

    code = "disk_full"

    def __init__(self, path: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{needed_bytes} bytes needed at {path}, {free_bytes} free")
        self.path = path
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class BadFile(InputFault):
    """A model file breaks its format or our limits; `offset` is the byte at which that was seen."""

    code = "bad_file"

    def __init__(self, path: str, reason: str, offset: int | None = None) -> None:
        where = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{path}: {reason}{where}")
        self.path = path
        self.reason = reason
        self.offset = offset


class IncompleteFile(BadFile):
    """The file ends too early. A whole one has `needed_bytes`, or more where the header is cut (not `known`)."""

    code = "incomplete_file"

    def __init__(self, path: str, have_bytes: int, needed_bytes: int, *, known: bool = True) -> None:
        where = f"a whole one has {needed_bytes:,}" if known else "in the middle of its header"
        super().__init__(path, f"incomplete: it ends after {have_bytes:,} bytes, {where}")
        self.have_bytes = have_bytes
        self.needed_bytes = needed_bytes
        self.known = known


class RefusedFormat(BadFile):
    """A format that is refused by policy, whatever is in it (pickles run code when they are read)."""

    code = "refused_format"


class BudgetTooSmall(InputFault):
    """No mix fits: the smallest possible one takes `smallest_bytes` of the `limit_bytes` asked for."""

    code = "budget_too_small"

    def __init__(self, limit_bytes: int, smallest_bytes: int) -> None:
        super().__init__(f"{limit_bytes} bytes asked for; the smallest possible mix takes {smallest_bytes}")
        self.limit_bytes = limit_bytes
        self.smallest_bytes = smallest_bytes


class InvalidOption(InputFault):
    """An option of the caller makes no sense for this model; `param` names it, `reason` says why."""

    code = "bad_wish"

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{'The source cannot be used' if param == 'SOURCE' else param}: {reason}")
        self.param = param
        self.reason = reason


class UnsupportedModel(InputFault):
    """The model is intact, but this converter does not know its kind; `reason` says what it met."""

    code = "unsupported_model"

    def __init__(self, path: str, reason: str, supported: tuple[str, ...] = ()) -> None:
        known = f"; supported are {', '.join(supported)}" if supported else ""
        super().__init__(f"{path}: {reason}{known}")
        self.path = path
        self.reason = reason
        self.supported = supported


class ConverterNeeded(UnsupportedModel):
    """This converter does not know the architecture, llama.cpp's own does."""

    code = "converter_needed"

    def __init__(self, path: str, architecture: str) -> None:
        super().__init__(path, f"{architecture} is not one of our families; llama.cpp's own converter knows it")
        self.architecture = architecture


class BadWeights(InputFault):
    """A tensor holds values no model can have (NaN or infinity), or is of the wrong shape."""

    code = "bad_weights"

    def __init__(self, path: str, tensor: str, reason: str) -> None:
        super().__init__(f"{path}: tensor {tensor}: {reason}")
        self.path = path
        self.tensor = tensor
        self.reason = reason


class NotWritable(EnvironmentFault):
    """Nothing can be written at `path`; `reason` is the system's own word for why."""

    code = "not_writable"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be written: {reason}")
        self.path = path
        self.reason = reason


class SourceChanged(EnvironmentFault):
    """The source was not the same at the end as at the beginning; nothing was kept."""

    code = "source_changed"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} changed while it was read")
        self.path = path
