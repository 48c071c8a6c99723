"""Stores the user's settings for models in one file that the CLI and the server share."""

import contextlib
import logging
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from devices.errors import TesseraError
from devices.msgspec_lock import learned
from engine.core.errors import BadModelFile, InputFault
from engine.core.json_store import CorruptStateFile, JsonStore, with_row
from engine.core.paths import Paths
from engine.message_catalog.reasons import Reason, because
from engine.placement.types import LoadOptions, ModelSettings
from engine.runner.engine_args import EngineArgs
from engine.runner.load_limits import KV_TYPES
from quantize.files.gguf_header import LazyArray
from quantize.files.gguf_split import read_gguf_model
from quantize.files.sampling_keys import BOUNDS, Value, checked

if TYPE_CHECKING:
    from engine.library.catalogue import Catalogue
    from engine.library.types import ModelEntry

log = logging.getLogger(__name__)
MAX_ALIASES: Final = 1000
MAX_NAME: Final = 200
# As in the runner (draft_model.py): unused entries at the end may differ.
MAX_SIZE_DIFFERENCE: Final = 128
# Files of earlier versions, each a table of models, and the field that a row became. A row of load.json holds
# several fields by name, and aliases.json is a table of aliases.
_ALIASES: Final = "aliases.json"
_LOADS: Final = "load.json"
_TABLES: Final = {"drafts.json": "draft", "sampling.json": "sampling", "engine_args.json": "engine_args"}
_PINS: Final = "pins"
_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(ModelSettings)}
_SAME: Final = {name: name for name in BOUNDS}


class _File(msgspec.Struct, frozen=True):
    """Rows stay as written, so that a corrupt or newer field affects only that field."""

    models: dict[str, Any] = {}
    aliases: dict[str, Any] = {}
    presets: dict[str, Any] = {}


class Preset(msgspec.Struct, frozen=True, omit_defaults=True):
    """Defaults of an alias, for requests that do not set them: a system prompt, and options by Ollama's names."""

    system: str = ""
    options: dict[str, Any] = {}

    @property
    def sampling(self) -> dict[str, Any]:
        """The options that are sampling values."""
        return {name: value for name, value in self.options.items() if name in BOUNDS or name == "seed"}

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of an answer; None: no limit."""
        limit = self.options.get("num_predict")
        return limit if isinstance(limit, int) and limit > 0 else None

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end an answer."""
        stops = self.options.get("stop") or ()
        return (stops,) if isinstance(stops, str) else tuple(stops)


NO_PRESET: Final = Preset()


class ModelSettingsStore:
    """A JSON file of `models` (id to `ModelSettings`), `aliases` (name or pattern to model id) and their `presets`.

    `history` is the file in which earlier versions stored pins. Their other files are next to `path`. The first use
    writes the new file atomically with a copy of all of them; only then are the old files renamed.
    """

    def __init__(self, path: Path | None = None, history: Path | None = None) -> None:
        self._store = JsonStore(path, _File, _File)
        self._history = history
        self._is_migrated = path is None

    def get(self, model_id: str) -> ModelSettings:
        """The user's settings for this model; a field that is corrupt or from a newer version counts as not set."""
        row, values = _row(self._read(), model_id), {}
        for field in _FIELDS.values():
            if field.encode_name in row:
                with contextlib.suppress(msgspec.ValidationError):
                    strict = field.type is not EngineArgs
                    values[field.name] = msgspec.convert(row[field.encode_name], learned(field.type), strict=strict)
        if "sampling" in values:
            values["sampling"] = checked(values["sampling"], _SAME)
        return ModelSettings(**values)

    def models_in(self, engine: str) -> tuple[str, ...]:
        """Models that the user assigned to this program."""
        return tuple(model for model in self._read().models if self.get(model).engine == engine)

    def pins(self) -> dict[str, str]:
        """Model id to the device that the user pinned it to."""
        devices = {model_id: self.get(model_id).device for model_id in self._read().models}
        return {model_id: device for model_id, device in devices.items() if device}

    def change(self, model_id: str, **values: Any) -> None:
        """Replace some fields; a field's default value leaves it to Tessera again. Raises: OSError."""

        def changed(old: _File) -> _File:
            row = dict(_row(old, model_id))
            for name, value in values.items():
                field = _FIELDS[name]
                row.pop(field.encode_name, None)
                if value != _default(field):
                    row[field.encode_name] = msgspec.to_builtins(value)
            return msgspec.structs.replace(old, models=with_row(old.models, model_id, row or None))

        self._migrate()
        self._store.change(changed)

    def set_load(self, model_id: str, options: LoadOptions, context_train: int = 0) -> None:
        """Replace the load options of a model.

        Raises: InputFault: an unknown cache type, or more context than the model was trained for.
        """
        check_kv_type(options.type_k)
        if context_train and (options.n_ctx or 0) > context_train:
            reason = because("context_beyond_training", model=model_id, trained=context_train, n_ctx=options.n_ctx)
            raise InputFault(reason, "n_ctx")
        self.change(model_id, **msgspec.structs.asdict(options))

    def set_sampling(self, model_id: str, values: Mapping[str, Value]) -> None:
        """Replace the sampling of a model; empty values restore its recommendation.

        Raises: InputFault: an unknown field or a value out of bounds.
        """
        fit = checked(values, _SAME)
        wrong = next((name for name in values if name not in fit), None)
        if wrong is not None:
            if wrong not in BOUNDS:
                raise InputFault(because("sampling_unknown", name=wrong, names=tuple(BOUNDS)), wrong)
            low, high = BOUNDS[wrong]
            value = values[wrong]
            raise InputFault(because("sampling_out_of_bounds", name=wrong, low=low, high=high, value=value), wrong)
        self.change(model_id, sampling=fit)

    def aliases(self) -> dict[str, str]:
        """Every alias and its model."""
        aliases = self._read().aliases
        return {name.casefold(): model for name, model in aliases.items() if isinstance(model, str)}

    def plain_aliases(self) -> dict[str, str]:
        """The aliases that are plain names: a pattern cannot appear in a list of models."""
        return {name: model for name, model in self.aliases().items() if not set(name) & set("*?[")}

    def resolve(self, name: str, is_model: Callable[[str], object] = lambda _name: None) -> str:
        """The model that `name` stands for, or `name` itself. `*` and `?` match as in file names.

        An exact alias takes precedence over patterns, and longer patterns over shorter ones. A pattern does not
        hide a model that has this name.
        """
        names, folded = self.aliases(), name.casefold()
        if folded in names:
            return names[folded]
        for pattern in sorted(names, key=len, reverse=True):
            if fnmatchcase(folded, pattern):
                return name if is_model(name) else names[pattern]
        return name

    def preset(self, name: str) -> Preset:
        """The defaults that the alias of this name adds to requests."""
        row = self._read().presets.get(name.strip().casefold())
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(row, learned(Preset)) if row is not None else NO_PRESET
        return NO_PRESET

    def set_alias(self, name: str, model: str, preset: Preset = NO_PRESET) -> None:
        """Create an alias `name` for `model`. Raises: InputFault: an empty or overlong name, or too many."""
        key = name.strip().casefold()
        if not key or len(key) > MAX_NAME or not model or len(model) > MAX_NAME:
            raise InputFault(because("alias_length", longest=MAX_NAME), "alias")

        def changed(old: _File) -> _File:
            names = {name.casefold(): model for name, model in old.aliases.items()}
            if key not in names and len(names) >= MAX_ALIASES:
                raise InputFault(because("too_many_aliases", most=MAX_ALIASES), "alias")
            presets = with_row(old.presets, key, msgspec.to_builtins(preset) or None)
            return msgspec.structs.replace(old, aliases={**names, key: model}, presets=presets)

        self._migrate()
        self._store.change(changed)

    def remove_alias(self, name: str) -> bool:
        """Remove an alias; False if there was none."""
        key = name.strip().casefold()
        self._migrate()
        with self._store.locked():
            old = self._store.get()
            names = {name.casefold(): model for name, model in old.aliases.items()}
            if names.pop(key, None) is None:
                return False
            presets = with_row(old.presets, key, None)
            self._store.put(msgspec.structs.replace(old, aliases=names, presets=presets))
        return True

    def _read(self) -> _File:
        if not self._is_migrated:
            try:
                self._migrate()
            except OSError as error:
                log.warning("the settings of models are not in one file yet: %s", error)
                with contextlib.suppress(OSError):
                    return self._earlier()
        return self._store.get()

    def _migrate(self) -> None:
        """Create the file from those of earlier versions, once. Raises: OSError: then nothing has changed."""
        path = self._store.path
        if self._is_migrated or path is None:
            return
        if not path.exists() and (self._earlier() != _File() or any(map(Path.exists, self._earlier_files()))):
            with self._store.locked():
                if not path.exists():
                    self._store.put(self._earlier())
            self._set_aside()
        self._is_migrated = True

    def _earlier_files(self) -> list[Path]:
        folder = self._store.path.parent if self._store.path is not None else Path()
        return [folder / name for name in (_ALIASES, _LOADS, *_TABLES)]

    def _earlier(self) -> _File:
        """Settings stored by earlier versions. Raises: OSError: a file exists and cannot be read now."""
        aliases, loads, *tables = map(_table, self._earlier_files())
        models: dict[str, dict[str, Any]] = {}
        for model_id, row in loads.items():
            models.setdefault(model_id, {}).update(row if isinstance(row, dict) else {})
        for name, table in zip(_TABLES.values(), tables, strict=True):
            for model_id, value in table.items():
                models.setdefault(model_id, {})[name] = value
        pins = _table(self._history).get(_PINS) if self._history is not None else None
        for model_id, device in pins.items() if isinstance(pins, dict) else ():
            models.setdefault(model_id, {})["device"] = device
        return _File(models={name: row for name, row in models.items() if row}, aliases=aliases)

    def _set_aside(self) -> None:
        """Rename the copied files so that they are not read again and the user can still find them."""
        for file in self._earlier_files():
            if file.exists() and not _is_damaged(file):
                with contextlib.suppress(OSError):
                    file.replace(file.with_name(f"{file.name}.migrated"))
        if self._history is not None and _PINS in _table(self._history):
            store = JsonStore(self._history, dict[str, Any], dict)
            with contextlib.suppress(OSError):
                store.change(lambda old: {name: table for name, table in old.items() if name != _PINS})


def open_model_settings(paths: Paths) -> ModelSettingsStore:
    """This user's model settings."""
    return ModelSettingsStore(paths.config / "model_settings.json", paths.state / "dispatch.json")


def named_model(catalogue: "Catalogue", name: str) -> "ModelEntry":
    """The model of the library with that name or alias. Raises: ModelNotFound."""
    from engine.library.catalogue import require

    return require(catalogue, open_model_settings(catalogue.paths).resolve(name, catalogue.get))


def _row(file: _File, model_id: str) -> dict[str, Any]:
    row = file.models.get(model_id)
    return row if isinstance(row, dict) else {}


def _default(field: Any) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _table(path: Path) -> dict[str, Any]:
    """A table that an earlier version wrote; empty if missing or corrupt. Raises: OSError."""
    with contextlib.suppress(FileNotFoundError):
        path.read_bytes()  # raises if the file cannot be read now: it must not count as empty
        with contextlib.suppress(CorruptStateFile):
            return JsonStore(path, dict[str, Any], dict).read()
    return {}


def _is_damaged(path: Path) -> bool:
    try:
        JsonStore(path, dict[str, Any], dict).read()
    except CorruptStateFile:
        return True
    return False


def check_kv_type(name: str | None, field: str = "kv_type") -> None:
    """Check a cache type. Raises: InputFault: no cache type has that name."""
    if name is not None and name not in KV_TYPES:
        raise InputFault(because("cache_type_unknown", name=name, names=tuple(KV_TYPES)), field)


def unfit_draft(target: Path, draft: Path) -> Reason | None:
    """Why one file cannot be the draft model of the other, by their headers; None if it can.

    The runner checks each token. Raises: BadModelFile.
    """
    if target.resolve() == draft.resolve():
        return because("draft_is_itself")
    facts = []
    for path in (target, draft):
        try:
            metadata = read_gguf_model(str(path)).metadata
        except TesseraError as error:
            raise BadModelFile(str(path), str(error)) from error
        tokens = metadata.get("tokenizer.ggml.tokens")
        size = len(tokens) if isinstance(tokens, LazyArray | tuple) else 0
        facts.append((metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"), size))
    (kind, pre, size), (draft_kind, draft_pre, draft_size) = facts
    if (kind, pre) != (draft_kind, draft_pre):
        return because("draft_tokenizer", draft=f"{draft_kind}/{draft_pre}", model=f"{kind}/{pre}")
    if abs(size - draft_size) > MAX_SIZE_DIFFERENCE:
        return because("draft_vocabulary", draft=draft_size, model=size)
    return None
