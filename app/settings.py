"""Table of all settings with their types; used by settings page, file, environment and terminal."""

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from app.setting import Setting, SettingsError, Value
from engine.core.defaults import DEFAULT_HOST, DEFAULT_PORT
from engine.core.paths import user_paths
from quantize.kv_cache_types import CACHE_TYPES

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

# Variables that this process set itself; they do not count as set by the user's environment.
_EXPORTED: Final[dict[str, str]] = {}


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
        "Tray icon",
        "Tessera keeps running when you close the window; the icon opens it again.",
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
    Setting("chat.model", "", "Model for new chats", "By default, the most recently used model.", "Chat"),
    Setting("chat.system_prompt", "", "System prompt", "Instructions that open every new chat.", "Chat"),
    Setting(
        "chat.tools",
        "",
        "Tools for new chats",
        "Names of the tools that are on in every new chat, separated by commas. The Tools panel can set this.",
        "Chat",
    ),
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
        "Happens in idle time, before the context is full. Nothing is lost: you can open every summary to see the "
        "original messages.",
        "Chat",
    ),
    Setting(
        "chat.titles",
        True,
        "Titles by the model",
        "The model names a new chat when it is idle. Names that you choose are not changed.",
        "Chat",
    ),
    Setting(
        "chat.read_ahead",
        "mains",
        "Process your draft while you type",
        "The loaded model processes the chat and your draft while you type, for at most 30 s per question (4 s on "
        "battery).",
        "Chat",
        choices=("off", "mains", "always"),
    ),
    Setting(
        "tools.folders",
        "",
        "Folders that the file tool may read",
        "In addition to the folder of a chat's project. Separate several folders with ;",
        "Chat",
    ),
    Setting(
        "chat.memory",
        "ask",
        "Memory across chats",
        "For chats in which the Memory tool is on. Ask: each new fact is shown first. Automatic: facts are saved "
        "without a question, unless files or other tools bring in foreign text. Off: no chat uses or saves facts.",
        "Chat",
        choices=("off", "ask", "automatic"),
    ),
    Setting(
        "web.searxng",
        "",
        "Address of a SearXNG instance for web search",
        "Chats in which the Web tool is on send search words there. Its JSON format must be allowed. Without "
        "an address, pages can be read, but not searched.",
        "Chat",
    ),
    Setting(
        "chat.context_warn_percent",
        80,
        "Warn when the context is this full",
        "Percent of the context. Before it overflows, you choose what to do.",
        "Chat",
        minimum=50,
        maximum=99,
    ),
    Setting(
        "chat.backup_days",
        7,
        "Daily backups to keep",
        "Copies of all chats, one per day.",
        "Chat",
        minimum=1,
        maximum=90,
    ),
    Setting(
        "voice.enabled",
        True,
        "Dictation and reading aloud",
        "Shows a microphone at the message and Read aloud at the answers. Nothing is recorded before you press the "
        "microphone, and no recording is stored.",
        "Voice",
    ),
    Setting(
        "voice.language",
        "automatic",
        "Language of reading aloud",
        "Automatic: the language of the answer. Dictation understands English only.",
        "Voice",
        choices=("automatic", "de", "en", "es", "fr", "it", "nl", "pl", "pt"),
    ),
    Setting(
        "voice.device",
        "",
        "Microphone",
        "Its name. By default, the microphone that the system uses. While you dictate, you can choose it from a "
        "list.",
        "Voice",
    ),
    Setting("code.reopen", True, "Reopen the last project", "With its last session, on the Code page.", "Code"),
    Setting("code.editor", "", "Editor", "vscode, zed, desktop, or a command with {file} and {line}.", "Code"),
    Setting(
        "models.context",
        0,
        "Context",
        "Tokens of a model's context, unless it was trained for fewer. 0: Tessera chooses what fits, and it grows.",
        "Models",
        minimum=0,
        maximum=1 << 24,
        restart=True,
    ),
    Setting(
        "models.parallel",
        0,
        "Concurrent requests",
        "How many requests a loaded model processes concurrently. 0: Tessera chooses what fits.",
        "Models",
        minimum=0,
        maximum=128,
        restart=True,
    ),
    Setting(
        "models.cache_type",
        "auto",
        "KV cache type",
        "Smaller types need less memory and are less precise.",
        "Models",
        choices=("auto", *CACHE_TYPES),
        restart=True,
    ),
    Setting(
        "models.device",
        "",
        "Device",
        "A device id, a kind (cpu, igpu, dgpu) or a backend (vulkan, cuda). By default, Tessera chooses.",
        "Models",
        restart=True,
    ),
    Setting(
        "models.keep_alive",
        3600,
        "Unload idle models after",
        "In seconds. 0: never.",
        "Models",
        minimum=0,
        maximum=1_000_000_000,
        restart=True,
    ),
    Setting(
        "models.max_loaded",
        0,
        "Models loaded at once",
        "Idle models are unloaded to make room. 0: as many as fit.",
        "Models",
        minimum=0,
        maximum=1000,
        restart=True,
    ),
    Setting(
        "models.compare_answers",
        True,
        "Compare answers with the CPU",
        "While nothing runs, for at most 0.5 % of the computing time. A wrong device is no longer used.",
        "Models",
        restart=True,
    ),
    Setting(
        "models.folder",
        "",
        "Folder of the models",
        "By default, a folder of Tessera. A change here moves no files. `tessera models move-folder` does.",
        "Models",
        restart=True,
        folder=True,
        exported=True,
    ),
    Setting(
        "cache.prefix_mib",
        4096,
        "Disk space for cached prompts",
        "In MiB. Conversations continue without delay after a restart. 0 turns it off. `tessera cache` empties it.",
        "Models",
        minimum=0,
        maximum=1 << 30,
        restart=True,
        exported=True,
    ),
    Setting("server.host", DEFAULT_HOST, "Address", "127.0.0.1 serves this computer only.", "Server", restart=True),
    Setting(
        "server.port",
        DEFAULT_PORT,
        "Port",
        "Programs connect to the server on this port.",
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
        "Never connect to other computers: no model search, no downloads.",
        "Network",
    ),
    Setting(
        "network.check_models",
        False,
        "Check recommended models",
        "Asks the hub whether it has the recommended models and how large they are, before they are offered.",
        "Network",
    ),
    Setting(
        "updates.notice",
        False,
        "Check for new versions of Tessera",
        "At each start, Tessera looks up the newest version on the release page. It never installs it by itself.",
        "Network",
    ),
    Setting(
        "kernels.address",
        "",
        "Address of kernel packs",
        "Address that `tessera kernels install NAME` downloads from. Without it, packs come only from files.",
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
_BY_VARIABLE: Final[Mapping[str, Setting]] = MappingProxyType({row.environment: row for row in SETTINGS})
# What begins like this is a setting or a mistake; other variables of Tessera have other second words.
_PREFIXES: Final = tuple(sorted({f"TESSERA_{row.name.partition('.')[0].upper()}_" for row in SETTINGS}))


@dataclass(frozen=True)
class Settings:
    """Immutable snapshot of all settings; a change creates a new object.

    `problems` lists invalid rows of the file, which were replaced by their defaults. `fixed` holds the names of
    settings that the environment overrides.
    """

    values: Mapping[str, Value]
    problems: tuple[SettingsError, ...] = ()
    fixed: frozenset[str] = field(default_factory=frozenset)

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def text(self, name: str) -> str:
        return str(self.values[name])

    def integer(self, name: str) -> int:
        return int(self.values[name])

    def flag(self, name: str) -> bool:
        return bool(self.values[name])

    def changed(self, name: str, value: object) -> "Settings":
        """A copy with one validated change. Raises: SettingsError."""
        if name not in BY_NAME:
            raise SettingsError(name, "there is no such setting")
        return Settings({**self.values, name: BY_NAME[name].parse(value)}, self.problems, self.fixed)


def settings_file() -> Path:
    """Path of this user's settings file."""
    return user_paths().config / "settings.toml"


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings: environment over file over defaults. An invalid row becomes a problem and its default."""
    path = settings_file() if path is None else path
    environ = os.environ if environ is None else environ
    values: dict[str, Value] = {row.name: row.default for row in SETTINGS}
    problems: list[SettingsError] = []
    fixed: set[str] = set()
    text = _text(path, problems)
    for name, raw in _rows(text, path, problems):
        row = BY_NAME.get(name)
        try:
            if row is not None:
                values[name] = row.typed(raw)
                continue
            reason = unknown(name)
        except SettingsError as error:
            reason = error.reason
        problems.append(SettingsError(name, reason, _where(path, text, name)))
    for row, value in _given(environ, problems):
        try:
            values[row.name] = row.parse(value)
            fixed.add(row.name)
        except SettingsError as error:
            problems.append(SettingsError(row.name, error.reason, f"environment variable {row.environment}"))
    return Settings(values, tuple(problems), frozenset(fixed))


def _given(environ: Mapping[str, str], problems: list[SettingsError]) -> Iterator[tuple[Setting, str]]:
    """Settings with their text in the environment; empty is unset, unless it is a text without choices."""
    for name in sorted(environ):
        row = _BY_VARIABLE.get(name)
        if row is None and name.startswith(_PREFIXES):
            near = get_close_matches(name, _BY_VARIABLE, 1, 0.8)
            reason = "no setting has this name." + (f" Did you mean {near[0]}?" if near else "")
            problems.append(SettingsError("", reason, f"environment variable {name}"))
        may_be_empty = row is not None and row.kind is str and not row.choices and not row.folder
        if row is not None and environ[name] != _EXPORTED.get(name) and (environ[name] or may_be_empty):
            yield row, environ[name]


def given_environment() -> dict[str, str]:
    """The environment without the variables that `export` set from the settings file."""
    return {name: value for name, value in os.environ.items() if _EXPORTED.get(name) != value}


def unknown(name: str) -> str:
    """Error text for an unknown setting."""
    name = name.lower()
    near = get_close_matches(name, BY_NAME, 1, 0.8)  # a typo
    near = near or [full for full in BY_NAME if name and name in full.split(".")]  # such as "context"
    near = near or get_close_matches(name, BY_NAME, 3, 0.5)
    question = f"; did you mean {' or '.join(near[:3])}?" if near else "."
    return f"there is no such setting{question} `tessera settings list` shows all."


def export(settings: Settings) -> None:
    """Set the environment variables that the engine reads, in this process and its children."""
    for row in SETTINGS:
        if row.exported and settings[row.name] != row.default:
            os.environ[row.environment] = _EXPORTED[row.environment] = str(settings[row.name])


def keep_models_folder(folder: Path | None) -> None:
    """Store the folder to which the models were moved; None only checks that this is possible.

    Raises: InputFault: the environment names the folder, or the settings file is invalid. OSError.
    """
    from engine.core.errors import InputFault
    from engine.library.models_folder import folder_is_fixed

    row = BY_NAME["models.folder"]
    in_file = load(environ={})
    if row.name in load().fixed and os.environ[row.environment] != in_file[row.name]:
        raise folder_is_fixed(row.environment)
    try:
        with_folder = in_file.changed(row.name, in_file[row.name] if folder is None else str(folder))
        save(with_folder, names={row.name})
    except SettingsError as error:
        raise InputFault(str(error), "path") from error
    if folder is not None:
        os.environ[row.environment] = _EXPORTED[row.environment] = str(folder)


def save(settings: Settings, path: Path | None = None, names: Collection[str] | None = None) -> None:
    """Write changed settings atomically; keeps comments, order and unknown rows. Raises: OSError.

    `names` are the settings changed by the caller (None: all); another program may have changed the others
    meanwhile. Settings that the environment overrides are not written.
    Raises: SettingsError: the file is not valid TOML; it stays unchanged.
    """
    from devices.atomic_file import locked, write_atomically

    path = settings_file() if path is None else path
    with locked(path):
        document = _document(path)
        for row in SETTINGS:
            section, _, key = row.name.partition(".")
            if row.name not in settings.fixed and (names is None or row.name in names):
                _put(document, section, key, settings[row.name], row)
        write_atomically(path, document.as_string().encode("utf-8"))


def _document(path: Path) -> "TOMLDocument":
    """Parse the file for editing; an empty document if it does not exist."""
    import tomlkit

    try:
        return tomlkit.parse(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        return tomlkit.document()
    except (UnicodeDecodeError, tomlkit.exceptions.ParseError) as error:
        raise _unreadable(path, error) from error


def _put(document: "TOMLDocument", section: str, key: str, value: Value, row: Setting) -> None:
    """Update one row of the document unless it already has this value."""
    import tomlkit

    existing = document.get(section)
    table = existing if isinstance(existing, dict) else None
    if table is not None and key in table:
        try:
            same = row.typed(table[key]) == value
        except SettingsError:
            same = value == row.default  # the invalid value was reported when it was read; the user may fix it
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


def _unreadable(path: Path, error: Exception) -> SettingsError:
    """Error for a file that is not valid TOML, with the line if known."""
    lines = 0
    if isinstance(error, UnicodeDecodeError):
        lines = error.object.count(b"\n", 0, error.start) + 1
    elif "line" not in str(error):  # an unclosed string or bracket: the error is at the end of the file
        lines = path.read_bytes().rstrip().count(b"\n") + 1
    reason = f"not readable as TOML: {error}. Correct that line, or move the file away"
    return SettingsError("", reason, f"{path}, line {lines}" if lines else str(path))


def _text(path: Path, problems: list[SettingsError]) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")  # Windows' editor writes a mark at the start
    except FileNotFoundError:
        pass
    except OSError as error:
        problems.append(SettingsError("", error.strerror or str(error), str(path)))
    except UnicodeDecodeError as error:
        problems.append(_unreadable(path, error))
    return ""


def _rows(text: str, path: Path, problems: list[SettingsError]) -> Iterator[tuple[str, object]]:
    """Yield (name, value) for each row; a top-level value yields its own name."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(_unreadable(path, error))
        return
    for section, rows in document.items():
        if isinstance(rows, dict):
            yield from ((f"{section}.{key}", value) for key, value in rows.items())
        else:
            yield section, rows


_HEADER: Final = re.compile(r"\s*\[+([^\]]+)\]")
_KEY: Final = re.compile(r"\s*([\w.\-\"' ]+?)\s*=")


def _where(path: Path, text: str, name: str) -> str:
    """The file, and the line of the setting if it is found."""
    section, inline = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = _plain(header[1])
            table_name = section
        elif key := _KEY.match(line):
            table_name = f"{section}.{_plain(key[1])}" if section else _plain(key[1])
        else:
            continue
        if table_name == name or table_name.startswith(f"{name}."):
            return f"{path}, line {number}"
        if name.startswith(f"{table_name}."):
            inline = number
    return f"{path}, line {inline}" if inline else str(path)


def _plain(key: str) -> str:
    return re.sub(r"[\"' ]", "", key)
