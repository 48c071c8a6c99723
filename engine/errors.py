"""The engine's error tree: facts as fields; words are made where a person or a client reads them."""

import errno
from collections.abc import Mapping
from typing import Final

from engine.reasons import Reason
from engine.wording import with_command


class EngineError(Exception):
    """Base of every error the engine raises on purpose. `code` is stable and scriptable."""

    code = "engine_error"

    def facts(self) -> dict[str, object]:
        """The error's fields, for logs and JSON."""
        return {k: v for k, v in vars(self).items() if not k.startswith("_")}


class EnvironmentFault(EngineError):
    """This machine or its state is the reason; the same request may work later or elsewhere."""

    code = "environment"


class InputFault(EngineError):
    """The request or file is the reason; a retry cannot help. `param` names the field."""

    code = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class Cancelled(EngineError):
    """The caller asked for the end."""

    code = "cancelled"


class ModelNotFound(InputFault):
    """No model of that name is known here."""

    code = "model_not_found"

    def __init__(self, model: str, known: tuple[str, ...] = ()) -> None:
        hint = f" Known models: {', '.join(known)}." if known else ""
        super().__init__(f"There is no model named {model!r} here.{hint}", "model")
        self.model = model
        self.known = known


class BadModelFile(InputFault):
    """The file is not a model this runtime can load; `reason` says what is wrong with it."""

    code = "bad_model_file"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be loaded: {reason}", "model")
        self.path = path
        self.reason = reason


class SelfCheckFailed(BadModelFile):
    """The file was loaded, but this machine computes nonsense with it: of broken kernels or of broken weights."""

    code = "self_check_failed"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, f"the check after loading failed: {reason}")


class DeviceCheckFailed(SelfCheckFailed):
    """The device differs from the CPU; `numbers` are a DeviceCheck's, empty where it computed none."""

    code = "device_check_failed"

    def __init__(self, path: str, reason: str, numbers: Mapping[str, object] | None = None) -> None:
        super().__init__(path, reason)
        self.reason = reason
        self.numbers = dict(numbers or {})


class ContextOverflow(InputFault):
    """The prompt does not fit the context; both counts in tokens. `at_least`: it was not counted to its end."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context_tokens: int, *, at_least: bool = False) -> None:
        super().__init__(
            f"The prompt has {'at least ' if at_least else ''}{prompt_tokens} tokens, but this model runs with a "
            f"context of {context_tokens}. Shorten the prompt or load the model with a larger context.",
            "messages",
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class ModelNotLoaded(EnvironmentFault):
    """Idle work loads no model: this one is not in memory."""

    code = "model_not_loaded"

    def __init__(self, model: str) -> None:
        super().__init__(f'{model} is not loaded, and a request with "priority": "side" loads no model.')
        self.model = model


class BatterySpent(EnvironmentFault):
    """The user bounded what may be spent of the battery, and this request does not fit any more."""

    code = "battery_budget_spent"

    def __init__(self, percent: float, spent_percent: float) -> None:
        super().__init__(
            f"At most {percent:g} % of the battery may be spent; {spent_percent:.1f} % are, and this request does "
            "not fit into the rest. Plug the computer in, or lift the bound: tessera power --free"
        )
        self.percent = percent
        self.spent_percent = spent_percent


class NotEnoughMemory(EnvironmentFault):
    """A load was refused before it began; bytes needed and available on `device`."""

    code = "not_enough_memory"

    def __init__(
        self, needed_bytes: int, available_bytes: int, device: str, options: tuple[Reason, ...] = ()
    ) -> None:
        ways = f" To make it fit: {'; '.join(map(with_command, options))}." if options else ""
        super().__init__(
            f"{_size(needed_bytes)} are needed on {device}, {_size(available_bytes)} are available.{ways}"
        )
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.device = device
        self.options = options

    def facts(self) -> dict[str, object]:
        """The fields; options as a person reads them."""
        return {**super().facts(), "options": [with_command(option) for option in self.options]}


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB" if num_bytes >= 10 << 30 else f"{num_bytes >> 20} MiB"


class RunnerDied(EnvironmentFault):
    """The child that ran the model ended; `exit_code` and its last lines of stderr say why."""

    code = "runner_died"

    def __init__(self, exit_code: int | None, reason: str, stderr_tail: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.reason = reason
        self.stderr_tail = stderr_tail


class ConstraintRefused(ValueError):
    """A grammar cannot be compiled; the text says why."""


# What the system says when it has no more of something, in words. Source: errno(3).
_EXHAUSTED: Final = {
    errno.EMFILE: "file descriptors",
    errno.ENFILE: "file descriptors",
    errno.ENOMEM: "memory",
    errno.EAGAIN: "processes",
    errno.ENOSPC: "disk space",
    getattr(errno, "EDQUOT", errno.ENOSPC): "disk space",
}
# What Python says when the system gives it no thread, for want of memory or of places. Source: CPython.
_NO_THREAD: Final = "can't start new thread"
_DATABASE_EXHAUSTED: Final = {"FullError": "disk space", "NoMemError": "memory"}


class OutOfResources(EnvironmentFault):
    """The system has no more of `what` at the moment: nothing is wrong with the request or with the program."""

    code = "out_of_resources"

    def __init__(self, what: str) -> None:
        super().__init__(f"The system has no more {what} at the moment; try again later.")
        self.what = what


def exhausted(error: BaseException) -> OutOfResources | None:
    """The fault of a system that ran out of something, where that is what `error` or one of its causes says."""
    seen: BaseException | None = error
    while seen is not None:
        lack = _lacking(seen)
        if lack is not None:
            return lack
        seen = seen.__cause__
    return None


def _lacking(error: BaseException) -> OutOfResources | None:
    kind = type(error)
    if isinstance(error, MemoryError):
        return OutOfResources("memory")
    if isinstance(error, OSError) and error.errno in _EXHAUSTED and not isinstance(error, ConnectionError):
        return OutOfResources(_EXHAUSTED[error.errno])
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return OutOfResources("threads")
    if kind.__module__.partition(".")[0] == "apsw" and kind.__name__ in _DATABASE_EXHAUSTED:
        return OutOfResources(_DATABASE_EXHAUSTED[kind.__name__])
    return None
