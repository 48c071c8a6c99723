"""Convert the options of `tessera quantize` into a request."""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from app.cli.echo import InputRefused

_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "kib": 2**10,
    "m": 10**6, "mb": 10**6, "mib": 2**20,
    "g": 10**9, "gb": 10**9, "gib": 2**30,
    "t": 10**12, "tb": 10**12, "tib": 2**40,
}  # fmt: skip
_SECONDS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
# A size in bytes with fewer digits than this is smaller than any model.
_SHORTEST_BYTES = 5
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


class _Measure(click.ParamType[float]):
    """A positive number with one of `units`."""

    units: Mapping[str, int]
    examples: str
    number: type[float]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert to the smallest unit."""
        if isinstance(value, int | float):
            return value
        match = _SIZE.fullmatch(str(value))
        if match is None or match[2].lower() not in self.units:
            self.fail(f"{value!r} is no {self.name}; write {self.examples}", param, ctx)
        result = self.number(float(match[1]) * self.units[match[2].lower()])
        if result <= 0:
            self.fail(f"the {self.name} must be above 0", param, ctx)
        return result


class Size(_Measure):
    """Bytes, rounded down: 4.5GB, 4200MiB, 5000000B or 5000000."""

    name, units, examples, number = "size", _UNITS, "4.5GB, 4200MiB or 5000000B", int

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert to bytes. A short number without a unit is a forgotten unit."""
        if isinstance(value, str) and value.strip().isdecimal() and len(value.strip()) < _SHORTEST_BYTES:
            self.fail(f"{value} has no unit; write {self.examples}", param, ctx)
        return super().convert(value, param, ctx)


class Duration(_Measure):
    """Seconds: 10min, 90s, 2h, 1.5h or 600."""

    name, units, examples, number = "time", _SECONDS, "10min, 90s or 2h", float


class RoundingOption(click.Choice[str]):
    """A rounding method; also accepts its name in earlier versions."""

    def __init__(self) -> None:
        super().__init__(["stock", "rows", "gptq"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Convert to the current name."""
        from quantize.types import Rounding

        with contextlib.suppress(ValueError):
            value = Rounding(value).value
        return super().convert(value, param, ctx)


class LockOption(click.ParamType[tuple[str, str, bool]]):
    """PATTERN=TYPE sets a type, PATTERN>=TYPE a minimum type: `attn_v=Q8_0`, `ffn_down>=Q5_K`."""

    name = "lock"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str, bool]:
        """Return (pattern, type, is_minimum)."""
        from quantize.ggml_types import GgmlType

        if isinstance(value, tuple):
            return value
        pattern, equals, qtype = str(value).rpartition("=")
        least = pattern.endswith(">")
        pattern, qtype = pattern.removesuffix(">"), qtype.strip().upper()
        if not equals or not pattern:
            self.fail(f"{value!r} is not PATTERN=TYPE or PATTERN>=TYPE", param, ctx)
        if qtype not in GgmlType.__members__:
            self.fail(f"there is no type {qtype!r}", param, ctx)
        return pattern, qtype, least


def parse_gate(text: str | None) -> str | None:
    """A task name, or the absolute path of a task file. Raises: click.UsageError: there is no such file."""
    if text in {None, "certify", "evaluate"}:
        return text
    path = Path(str(text)).expanduser()
    if not path.is_file():
        raise click.UsageError(f"--gate: {text!r} is neither certify nor evaluate nor a file.")
    return str(path.absolute())


def check_plan(plan: Path | None, keys: list[str]) -> None:
    """Verify a plan's signature. Raises: click.UsageError: no plan. InputRefused: no key signed it."""
    from app.kernel_pack_index import check_signature
    from devices.errors import PackRefused

    if plan is None:
        raise click.UsageError("--plan-key goes with --plan.")
    signature = plan.with_name(f"{plan.name}.minisig")
    try:
        text = signature.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputRefused(f"The plan's signature {signature} cannot be read: {error}") from error
    try:
        check_signature(plan.read_bytes(), text, keys)
    except PackRefused as error:
        raise InputRefused(
            f"{plan} was not signed with the key you gave, or was changed since: nothing was written."
        ) from error
