"""Every setting of the app in one typed table: it drives page, file, environment and terminal."""

import math
import os
import time
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.core.defaults import DEFAULT_HOST, DEFAULT_PORT
from engine.core.paths import user_paths

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

Value = bool | int | float | str
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class SettingsError(Exception):
    """A setting cannot be used as given; `name` is the setting, `reason` what is wrong with it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


@dataclass(frozen=True)
class Setting:
    """One row of the table. `minimum` and `maximum` bound numbers; `choices` bound text."""

    name: str
    default: Value
    title: str
    description: str
    group: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    restart: bool = False

    @property
    def kind(self) -> type[bool] | type[int] | type[float] | type[str]:
        """The Python type of the value."""
        return type(self.default)

    @property
    def environment(self) -> str:
        """The environment variable that overrides the file."""
        return "TESSERA_" + self.name.replace(".", "_").upper()

    def parse(self, value: object) -> Value:
        """Check a value from a file, a page or a command line; text is converted.

        Raises: SettingsError: wrong type, out of bounds, or not one of the choices.
        """
        converted = self._convert(value)
        if self.choices and converted not in self.choices:
            raise SettingsError(self.name, f"must be one of {', '.join(self.choices)}, not {value!r}")
        if isinstance(converted, int | float) and not isinstance(converted, bool):
            if not math.isfinite(converted):
                raise SettingsError(self.name, "must be a finite number")
            if self.minimum is not None and converted < self.minimum:
                raise SettingsError(self.name, f"must be at least {self.minimum:g}, not {converted:g}")
            if self.maximum is not None and converted > self.maximum:
                raise SettingsError(self.name, f"must be at most {self.maximum:g}, not {converted:g}")
        return converted

    def _convert(self, value: object) -> Value:
        kind = self.kind
        if kind is bool:
            if isinstance(value, bool):
                return value
            word = value.strip().lower() if isinstance(value, str) else None
            if word in _TRUE or word in _FALSE:
                return word in _TRUE
            raise SettingsError(self.name, f"must be true or false, not {value!r}")
        if kind is str:
            if isinstance(value, str):
                return value
            raise SettingsError(self.name, f"must be text, not {value!r}")
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise SettingsError(self.name, f"must be a number, not {value!r}")
        try:
            return kind(value)
        except (ValueError, OverflowError):
            raise SettingsError(self.name, f"must be a number, not {value!r}") from None


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "window.theme",
        "system",
        "Theme",
        "Light, dark, or as the system is set.",
        "Appearance",
        choices=("system", "light", "dark"),
    ),
    Setting(
        "window.contrast",
        "system",
        "Contrast",
        "High: black or white text and strong borders.",
        "Appearance",
        choices=("system", "normal", "high"),
    ),
    Setting(
        "window.tray",
        False,
        "Icon in the tray",
        "Closing the window then leaves Tessera running; the icon brings it back.",
        "Appearance",
    ),
    Setting(
        "window.text_percent",
        100,
        "Text size",
        "Percent of the normal text size.",
        "Appearance",
        minimum=75,
        maximum=200,
    ),
    Setting(
        "window.language",
        "system",
        "Language",
        "Language of the interface.",
        "Appearance",
        choices=("system", "en", "de", "pseudo"),
        restart=True,
    ),
    Setting("chat.model", "", "Model of new chats", "Empty: the model used last.", "Chat"),
    Setting("chat.system_prompt", "", "System prompt", "Instructions that open every new chat.", "Chat"),
    Setting(
        "chat.max_tokens",
        0,
        "Max tokens",
        "In tokens. 0: as long as the context allows.",
        "Chat",
        minimum=0,
        maximum=1_000_000,
    ),
    Setting(
        "chat.fold",
        True,
        "Summarize the older part of long chats",
        "In idle time, before the context is full. Nothing is lost: every summary opens to its originals.",
        "Chat",
    ),
    Setting(
        "chat.titles",
        True,
        "Titles by the model",
        "A new chat is named by its model while nothing else is asked; a name you gave stays.",
        "Chat",
    ),
    Setting(
        "chat.read_ahead",
        "mains",
        "Read what you write before you send it",
        "The loaded model reads chat and draft while you type; at most 30 s for a question, 4 s on battery.",
        "Chat",
        choices=("off", "mains", "always"),
    ),
    Setting(
        "tools.folders",
        "",
        "Folders that the file tool may read",
        "Beside the folder of a chat's project. Several with ; between them.",
        "Chat",
    ),
    Setting(
        "chat.context_warn_percent",
        80,
        "Warn when the context is this full",
        "Percent of the context; the choice what to do appears before it overflows.",
        "Chat",
        minimum=50,
        maximum=99,
    ),
    Setting(
        "chat.backup_days",
        7,
        "Daily backups kept",
        "Copies of all chats, one a day.",
        "Chat",
        minimum=1,
        maximum=90,
    ),
    Setting("server.host", DEFAULT_HOST, "Address", "127.0.0.1 serves this computer only.", "Server", restart=True),
    Setting(
        "server.port",
        DEFAULT_PORT,
        "Port",
        "Where programs find the server.",
        "Server",
        minimum=1024,
        maximum=65535,
        restart=True,
    ),
    Setting(
        "server.start_with_window",
        True,
        "Start the server with the window",
        "The window needs a running server for chat.",
        "Server",
    ),
    Setting(
        "network.offline",
        False,
        "Offline",
        "Never connect to anything but this computer: no model search, no downloads.",
        "Network",
    ),
    Setting(
        "updates.notice",
        False,
        "Tell of new versions",
        "Each start asks the release page for the newest version's number. Nothing is replaced by itself.",
        "Network",
    ),
    Setting(
        "kernels.address",
        "",
        "Address of kernel packs",
        "Where `tessera kernels install NAME` looks. Empty: packs come from files only.",
        "Network",
    ),
    Setting(
        "kernels.keys",
        "",
        "Keys of kernel packs",
        "Public minisign keys, separated by spaces, that may sign the list at that address.",
        "Network",
    ),
)
BY_NAME: Mapping[str, Setting] = MappingProxyType({row.name: row for row in SETTINGS})


@dataclass(frozen=True)
class Settings:
    """One immutable state of all settings; a change makes a new object.

    `problems` lists rows of the file that could not be used and were replaced by the default, and
    `fixed` the names that the environment decides.
    """

    values: Mapping[str, Value]
    problems: tuple[SettingsError, ...] = ()
    fixed: frozenset[str] = field(default_factory=frozenset)

    def __getitem__(self, name: str) -> Value:
        """The value of a row."""
        return self.values[name]

    def text(self, name: str) -> str:
        """The value of a text row."""
        return str(self.values[name])

    def integer(self, name: str) -> int:
        """The value of a whole-number row."""
        return int(self.values[name])

    def flag(self, name: str) -> bool:
        """The value of a yes-or-no row."""
        return bool(self.values[name])

    def changed(self, name: str, value: object) -> "Settings":
        """The same settings with one checked change. Raises SettingsError."""
        if name not in BY_NAME:
            raise SettingsError(name, "there is no such setting")
        return Settings({**self.values, name: BY_NAME[name].parse(value)}, self.problems, self.fixed)


def settings_file() -> Path:
    """Where the settings of this user are kept."""
    return user_paths().config / "settings.toml"


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings: environment over file over defaults. A bad row costs that row only."""
    path = settings_file() if path is None else path
    environ = os.environ if environ is None else environ
    values: dict[str, Value] = {row.name: row.default for row in SETTINGS}
    problems: list[SettingsError] = []
    fixed: set[str] = set()
    for name, raw in _read(path, problems).items():
        row = BY_NAME.get(name)
        if row is None:
            continue  # written by a newer version: kept out of the way, not an error
        try:
            values[name] = row.parse(raw)
        except SettingsError as error:
            problems.append(error)
    for row in SETTINGS:
        if row.environment in environ:
            try:
                values[row.name] = row.parse(environ[row.environment])
                fixed.add(row.name)
            except SettingsError as error:
                problems.append(error)
    return Settings(values, tuple(problems), frozenset(fixed))


def save(settings: Settings, path: Path | None = None, names: Collection[str] | None = None) -> None:
    """Write what changed, atomically: comments, order and rows unknown here stay as they are. Raises OSError.

    `names` are those that were changed here (None: all): others may have been changed by another program meanwhile.
    What the environment decides is not written. A file that is no TOML is kept aside.
    """
    from devices.atomic_file import locked, write_atomically  # noqa: PLC0415 - every command reads, few write

    path = settings_file() if path is None else path
    with locked(path):
        document = _document(path)
        for row in SETTINGS:
            section, _, key = row.name.partition(".")
            if row.name not in settings.fixed and (names is None or row.name in names):
                _put(document, section, key, settings[row.name], row)
        write_atomically(path, document.as_string().encode("utf-8"))


def _document(path: Path) -> "TOMLDocument":
    """The file for changing; an empty one where there is none."""
    import tomlkit  # noqa: PLC0415 - reading needs it not, and every start reads

    try:
        return tomlkit.parse(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        return tomlkit.document()
    except (UnicodeDecodeError, tomlkit.exceptions.ParseError):
        path.replace(path.with_name(f"{path.name}.corrupt-{int(time.time())}"))
        return tomlkit.document()


def _put(document: "TOMLDocument", section: str, key: str, value: Value, row: Setting) -> None:
    """Bring one row of the document up to date; nothing is touched that says the same already."""
    import tomlkit  # noqa: PLC0415 - see above

    found = document.get(section)
    table = found if isinstance(found, dict) else None
    if table is not None and key in table:
        try:
            same = row.parse(table[key]) == value
        except SettingsError:
            same = value == row.default  # it was told when it was read; the user may fix it
        if same:
            return
        if value == row.default:
            del table[key]
            return
    elif value == row.default:
        return
    if table is None:
        table = tomlkit.table()
        document[section] = table
    table[key] = value


def _read(path: Path, problems: list[SettingsError]) -> dict[str, object]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        problems.append(SettingsError(str(path), error.strerror or str(error)))
        return {}
    try:
        document = tomllib.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problems.append(SettingsError(str(path), f"is not readable as TOML ({error}); defaults are used"))
        return {}
    flat: dict[str, object] = {}
    for section, rows in document.items():
        if isinstance(rows, dict):
            flat.update({f"{section}.{key}": value for key, value in rows.items()})
    return flat
