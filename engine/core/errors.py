"""The engine's errors. Fields hold the facts; engine.message_catalog holds the messages."""

import errno
from collections.abc import Callable, Mapping
from typing import Any, Final

from devices.errors import Cancelled, EnvironmentFault, InputFault
from engine.message_catalog import sentence, sentences, with_command
from engine.message_catalog.reasons import Reason, because
from quantize import errors as quantizer


class ModelNotFound(InputFault):
    """No model of this name is known on this computer."""

    code = "model_not_found"

    def __init__(self, model: str, known: tuple[str, ...] = ()) -> None:
        lost = because("no_model", model=model)
        super().__init__(because("no_model_but", model=model, known=known) if known else lost, "model")
        self.model = model
        self.known = known


class AliasNotFound(ModelNotFound):
    """No alias of this name exists."""

    def __init__(self, alias: str) -> None:
        InputFault.__init__(self, because("no_alias", alias=alias), "alias")
        self.model, self.known = alias, ()


class BadModelFile(InputFault):
    """The file is not a model that this runtime can load; `reason` says why."""

    code = "bad_model_file"

    def __init__(self, path: str, reason: str | Reason) -> None:
        super().__init__(because("bad_model_file", path=path, why=reason), "model")
        self.path = path
        self.reason = sentence(reason)


class FileRefused(BadModelFile):
    """The file's content is the cause: another device or other settings would not help."""


class SelfCheckFailed(BadModelFile):
    """The file was loaded but gives wrong results on this machine: the kernels or the weights are broken."""

    code = "self_check_failed"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, because("check_failed", why=reason))


class DeviceCheckFailed(SelfCheckFailed):
    """The device's results differ from the CPU's.

    `numbers` are a DeviceCheck's fields, or empty if it has no result.
    """

    code = "device_check_failed"

    def __init__(self, path: str, reason: str, numbers: Mapping[str, object] | None = None) -> None:
        super().__init__(path, reason)
        self.reason = reason
        self.numbers = dict(numbers or {})


class ContextOverflow(InputFault):
    """The prompt does not fit the context; both counts are in tokens.

    With `at_least` the prompt has more tokens than counted. `trained`: the limit is the model's training context.
    `part`: the part of the request that is embedded or ranked, which no answer follows.
    """

    code = "context_length_exceeded"

    def __init__(
        self,
        prompt_tokens: int,
        context_tokens: int,
        *,
        at_least: bool = False,
        trained: bool = False,
        part: str = "",
    ) -> None:
        if part:
            kind = "part_overflow"
        elif trained:
            kind = "context_trained_at_least" if at_least else "context_trained"
        else:
            kind = "context_overflow_at_least" if at_least else "context_overflow"
        values: dict[str, Any] = {"part": part} if part else {}
        what = because(kind, prompt_tokens=prompt_tokens, context_tokens=context_tokens, **values)
        super().__init__(what, "messages")
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens
        self.at_least = at_least


class ContextCannotGrow(ContextOverflow):
    """The context would have to grow for this request, but there is not enough memory.

    `context_tokens` is the largest size that fits now, `loaded_tokens` the current one. `unload` names models that
    would have to be unloaded.
    """

    def __init__(
        self, prompt_tokens: int, context_tokens: int, loaded_tokens: int, unload: tuple[str, ...] = ()
    ) -> None:
        super().__init__(prompt_tokens, context_tokens)
        if context_tokens > loaded_tokens:
            kind = "context_cannot_grow_but" if unload else "context_cannot_grow"
        else:
            kind = "context_stays_but" if unload else "context_stays"
        what = because(
            kind,
            prompt_tokens=prompt_tokens,
            context_tokens=context_tokens,
            loaded_tokens=loaded_tokens,
            **({"models": unload} if unload else {}),
        )
        InputFault.__init__(self, what, "messages")
        self.loaded_tokens = loaded_tokens
        self.unload = unload


class StaysHere(InputFault):
    """A remote server runs the model, and the user has not allowed sending this text there.

    `server` is its address.
    """

    code = "stays_here"

    def __init__(self, model: str, server: str) -> None:
        super().__init__(because("stays_here", model=model, server=server), "model")
        self.model = model
        self.server = server


class ModelNotLoaded(EnvironmentFault):
    """Background work does not load models, and this one is not in memory."""

    code = "model_not_loaded"

    def __init__(self, model: str) -> None:
        super().__init__(because("model_not_loaded", model=model))
        self.model = model


class BatterySpent(EnvironmentFault):
    """The user set a battery budget, and this request would exceed it."""

    code = "battery_budget_spent"

    def __init__(self, percent: float, spent_percent: float) -> None:
        super().__init__(because("battery_spent", percent=percent, spent_percent=spent_percent))
        self.percent = percent
        self.spent_percent = spent_percent


class NotEnoughMemory(EnvironmentFault):
    """Not enough memory for a load, which was not started: bytes needed and available on `device`."""

    code = "not_enough_memory"

    def __init__(
        self, needed_bytes: int, available_bytes: int, device: str, options: tuple[Reason, ...] = ()
    ) -> None:
        needed, available = _size(needed_bytes), _size(available_bytes)
        what = because("not_enough_memory", needed=needed, device=device, available=available)
        if options:
            what = because("not_enough_memory_but", **what.values, options=tuple(map(with_command, options)))
        super().__init__(what)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.device = device
        self.options = options

    def facts(self) -> dict[str, object]:
        """Return the fields, with `options` as readable sentences."""
        return {**super().facts(), "options": sentences(map(with_command, self.options))}


def _size(num_bytes: int) -> Reason:
    large = num_bytes >= 10 << 30
    return because("gib", gib=num_bytes / (1 << 30)) if large else because("mib", mib=num_bytes >> 20)


class RunnerDied(EnvironmentFault):
    """The child process that ran the model exited; `exit_code` and the last lines of stderr give the cause."""

    code = "runner_died"

    def __init__(self, exit_code: int | None, reason: str | Reason, stderr_tail: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.reason = sentence(reason)
        self.stderr_tail = stderr_tail


class NoLoadSurvived(RunnerDied):
    """Loading this file crashed every runner with all settings, so a retry would crash too."""

    code = "bad_model_file"
    param = "model"

    def __init__(self, path: str, died: RunnerDied) -> None:
        why = fact_of(died) or died.reason
        super().__init__(died.exit_code, because("bad_model_file", path=path, why=why), died.stderr_tail)
        self.path = path


class ConstraintRefused(ValueError):
    """A grammar cannot be compiled; the message says why."""


# Names of the resources that the system can run out of. Source: errno(3).
_EXHAUSTED: Final = {
    errno.EMFILE: "file descriptors",
    errno.ENFILE: "file descriptors",
    errno.ENOMEM: "memory",
    errno.EAGAIN: "processes",
    errno.ENOSPC: "disk space",
    getattr(errno, "EDQUOT", errno.ENOSPC): "disk space",
}
# Python's message if the system cannot start a thread, for lack of memory or of thread slots. Source: CPython.
_NO_THREAD: Final = "can't start new thread"
_DATABASE_EXHAUSTED: Final = {"FullError": "disk space", "NoMemError": "memory"}


class OutOfResources(EnvironmentFault):
    """The system has run out of `what` for now; the request and the program are not at fault."""

    code = "out_of_resources"

    def __init__(self, what: str) -> None:
        super().__init__(because("out_of_resources", what=what))
        self.what = what


# Part of the program (an extra in pyproject.toml): the modules that only it needs.
PARTS: Final = {
    "code": ("mcp", "tree_sitter"),
    "documents": (
        "lxml",
        "markdown_it",
        "openpyxl",
        "pathspec",
        "pypdfium2",
        "python_multipart",
        "docx",
        "watchfiles",
    ),
    "hub": ("huggingface_hub",),
    "onnx": ("onnx", "onnxruntime", "onnxruntime_genai"),
    "quantize": ("gguf", "tokenizers"),
    "remote": ("asyncssh", "cryptography", "keyring", "packaging", "segno"),
    "terminal": ("prompt_toolkit", "rich", "tomlkit"),
    "window": ("PySide6", "pyqtgraph", "ziamath", "pygments"),
}


class PartMissing(EnvironmentFault):
    """The request needs a part of Tessera that is not installed; `what` names it."""

    code = "part_missing"

    def __init__(self, part: str) -> None:
        super().__init__(because("part_missing", part=part))
        self.what = f"part {part!r}"


def exhausted(error: BaseException) -> OutOfResources | PartMissing | None:
    """Return the fault if `error` or one of its causes means that a resource or a part is missing, else None."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:  # `raise error from error` makes a loop
        lack = _lacking(cause)
        if lack is not None:
            return lack
        chain.append(cause)
        cause = cause.__cause__
    return None


def _lacking(error: BaseException) -> OutOfResources | PartMissing | None:
    kind = type(error)
    if isinstance(error, ModuleNotFoundError):
        top = (error.name or "").partition(".")[0]
        return next((PartMissing(part) for part, modules in PARTS.items() if top in modules), None)
    if isinstance(error, MemoryError):
        return OutOfResources("memory")
    if isinstance(error, OSError) and error.errno in _EXHAUSTED and not isinstance(error, ConnectionError):
        return OutOfResources(_EXHAUSTED[error.errno])
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return OutOfResources("threads")
    if kind.__module__.partition(".")[0] == "apsw" and kind.__name__ in _DATABASE_EXHAUSTED:
        return OutOfResources(_DATABASE_EXHAUSTED[kind.__name__])
    return None


def fact_of(error: BaseException) -> Reason | None:
    """Return the error as a Reason that can be translated, or None if it only has text."""
    if error.args and isinstance(error.args[0], Reason):
        return error.args[0]
    for cls in type(error).__mro__:
        if cls in _FACTS:
            return _FACTS[cls](error)
    return None


def reason_for(error: Exception) -> str | Reason:
    """Return what is wrong with a file, without its path: a Reason if there is one, else the quantizer's text."""
    if isinstance(error, quantizer.MissingParts):
        return because("parts_missing", count=len(error.missing), first=error.missing[0])
    if isinstance(error, quantizer.IncompleteFile):
        return _ends_early(error)
    return str(getattr(error, "reason", error))


def _ends_early(error: quantizer.IncompleteFile) -> Reason:
    if error.known:
        return because("ends_early", have_bytes=error.have_bytes, needed_bytes=error.needed_bytes)
    return because("ends_in_header", have_bytes=error.have_bytes)


def _bad_file(error: quantizer.BadFile) -> Reason:
    if error.offset is None:
        return because("bad_file", path=error.path, why=reason_for(error))
    return because("bad_file_at", path=error.path, why=reason_for(error), offset=error.offset)


_FACTS: Final[dict[type, Callable[[Any], Reason]]] = {
    quantizer.CannotRead: lambda e: because("unreadable", path=e.path, why=e.reason),
    quantizer.NotWritable: lambda e: because("cannot_write", path=e.path, why=e.reason),
    quantizer.SourceChanged: lambda e: because("source_changed", path=e.path),
    quantizer.DiskFull: lambda e: because(
        "disk_full_at", path=e.path, needed_bytes=e.needed_bytes, free_bytes=e.free_bytes
    ),
    quantizer.BudgetTooSmall: lambda e: (
        because("memory_too_small", limit_bytes=e.limit_bytes, smallest_bytes=e.smallest_bytes, n_ctx=e.n_ctx)
        if e.n_ctx
        else because(
            "budget_too_small_rows",
            limit_bytes=e.limit_bytes,
            smallest_bytes=e.smallest_bytes,
            tensors=e.rows.num_tensors,
            row_values=e.rows.row_values,
            block_values=e.rows.block_values,
        )
        if e.rows
        else because("budget_too_small", limit_bytes=e.limit_bytes, smallest_bytes=e.smallest_bytes)
    ),
    quantizer.BadFile: _bad_file,
}
