"""The raw engine arguments of models, kept in a file that the terminal and the server share."""

from pathlib import Path
from typing import Any

import msgspec

from devices.msgspec_lock import learned
from engine.core.errors import InputFault
from engine.core.json_store import JsonStore, with_row
from engine.library.types import ModelEntry
from engine.runner.engine_args import NO_ARGS, BadEngineArg, EngineArgs, check, given


class EngineArgsStore:
    """Model id to its arguments."""

    def __init__(self, path: Path | None = None) -> None:
        self._store = JsonStore(path, dict[str, dict[str, Any]], dict)

    def get(self, model_id: str) -> EngineArgs:
        """The arguments of this model; those that a newer program wrote and this one does not know are left out."""
        kept = self._store.get().get(model_id, {})
        try:
            return msgspec.convert(kept, learned(EngineArgs), strict=False) if kept else NO_ARGS
        except msgspec.ValidationError:
            return NO_ARGS

    def set(self, model_id: str, args: EngineArgs) -> None:
        """Replace the arguments of a model; none at all goes back to Tessera's choice."""
        self._store.change(lambda old: with_row(old, model_id, given(args) or None))


def require_sound(entry: ModelEntry, args: EngineArgs) -> None:
    """Raises: InputFault: the model is not run by llama.cpp, or an argument makes no sense."""
    if given(args) and entry.format != "gguf":
        raise InputFault(f"{entry.id} is not run by llama.cpp, which engine_args are for.", "engine_args")
    try:
        check(args)
    except BadEngineArg as error:
        raise InputFault(f"engine_args.{error.name}: {error}.", f"engine_args.{error.name}") from error
