"""One setting: its type, its bounds, and how its values are read from text."""

import math
from dataclasses import dataclass
from pathlib import Path

Value = bool | int | float | str
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def plain_number(value: float) -> str:
    """All digits of a number, as a person can type them: 16777216, not 1.67772e+07."""
    return f"{value:.15g}"


def _shown(value: object) -> str:
    """A value of a settings file as it is written there."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) else str(value)


class SettingsError(Exception):
    """An invalid setting: `name` is the setting, `reason` the problem, `where` the file and line."""

    def __init__(self, name: str, reason: str, where: str = "") -> None:
        super().__init__(": ".join(part for part in (where, name, reason) if part))
        self.name = name
        self.reason = reason
        self.where = where


@dataclass(frozen=True)
class Setting:
    """One setting. `minimum` and `maximum` limit numbers, `choices` text; a `folder` is an absolute path.

    The engine reads an `exported` setting from its environment variable.
    """

    name: str
    default: Value
    title: str
    description: str
    group: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    restart: bool = False
    folder: bool = False
    exported: bool = False

    @property
    def kind(self) -> type[bool] | type[int] | type[float] | type[str]:
        """Python type of the value."""
        return type(self.default)

    @property
    def environment(self) -> str:
        """Name of the environment variable that overrides the file."""
        return "TESSERA_" + self.name.replace(".", "_").upper()

    def typed(self, value: object) -> Value:
        """Validate a value that has a type already, such as one of the file; text is not converted.

        Raises: SettingsError.
        """
        if isinstance(value, str) and self.kind is not str:
            expected = "true or false" if self.kind is bool else "a number"
            raise SettingsError(self.name, f"must be {expected} without quotes, not {value!r}")
        return self.parse(value)

    def parse(self, value: object) -> Value:
        """Validate a value from a page, a command line or the environment; converts text.

        Raises: SettingsError: wrong type, out of range, or not one of the choices.
        """
        converted = self._convert(value)
        if self.choices and converted not in self.choices:
            raise SettingsError(self.name, f"must be one of {', '.join(self.choices)}, not {value!r}")
        if self.folder and converted:
            folder = Path(str(converted)).expanduser()
            if not folder.is_absolute():
                raise SettingsError(self.name, f"must be a whole path such as /data/models, not {value!r}")
            if folder.is_file():
                raise SettingsError(self.name, f"must be a folder, and {value!r} is a file")
        if isinstance(converted, int | float) and not isinstance(converted, bool):
            if not math.isfinite(converted):
                raise SettingsError(self.name, "must be a finite number")
            number = plain_number(converted)
            if self.minimum is not None and converted < self.minimum:
                raise SettingsError(self.name, f"must be at least {plain_number(self.minimum)}, not {number}")
            if self.maximum is not None and converted > self.maximum:
                raise SettingsError(self.name, f"must be at most {plain_number(self.maximum)}, not {number}")
        return converted

    def _convert(self, value: object) -> Value:
        kind = self.kind
        if kind is bool:
            if isinstance(value, bool):
                return value
            word = value.strip().lower() if isinstance(value, str) else None
            if word in _TRUE or word in _FALSE:
                return word in _TRUE
            raise SettingsError(self.name, f"must be true or false, not {_shown(value)}")
        if kind is str:
            if isinstance(value, str):
                return next((choice for choice in self.choices if choice.lower() == value.lower()), value)
            raise SettingsError(self.name, f"must be text, not {_shown(value)}")
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise SettingsError(self.name, f"must be a number, not {_shown(value)}")
        if kind is int and isinstance(value, float) and not value.is_integer():
            raise SettingsError(self.name, f"must be a whole number, not {value!r}")
        try:
            return kind(value)
        except (ValueError, OverflowError):
            raise SettingsError(self.name, f"must be a number, not {_shown(value)}") from None
