"""Who set what of a load: the steps that decide its settings note each change with its reason."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from engine.message_catalog.reasons import Reason
from engine.runner.protocol import LoadSettings

About = TypeVar("About")
# A step reads what is known about a load, and returns its settings, changed or not, and why.
Step = Callable[[About, LoadSettings], tuple[LoadSettings, Reason | None]]


# Of a setting, as JSON has it.
Value = bool | int | float | str | tuple[str | float, ...] | None


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """One step set one field of a load's settings."""

    step: str
    field: str
    old: Value
    new: Value
    reason: Reason | None = None


def name_of(step: Callable[..., object]) -> str:
    """A step as it is shown."""
    return step.__name__.replace("_", " ")


def changes_between(
    step: str, old: LoadSettings, new: LoadSettings, reason: Reason | None
) -> tuple[SettingChange, ...]:
    """A change for each field that differs."""
    return tuple(
        SettingChange(step=step, field=name, old=_value(before), new=_value(after), reason=reason)
        for name in LoadSettings.__struct_fields__
        if (before := getattr(old, name)) != (after := getattr(new, name))
    )


def _value(value: Any) -> Value:
    if isinstance(value, msgspec.Struct):
        return msgspec.json.encode(value).decode()
    if isinstance(value, tuple):
        return tuple(item if isinstance(item, str | float) else str(_value(item)) for item in value)
    found: Value = value
    return found


def follow(
    steps: Iterable[Step[About]], about: About, settings: LoadSettings
) -> tuple[LoadSettings, tuple[SettingChange, ...]]:
    """The settings after these steps, and what each changed."""
    changes: list[SettingChange] = []
    for step in steps:
        found, reason = step(about, settings)
        changes += changes_between(name_of(step), settings, found, reason)
        settings = found
    return settings, tuple(changes)
