"""How the user wants models loaded, kept in a file that the terminal and the server share."""

from pathlib import Path

import msgspec

from engine.api.models import LoadChoices
from engine.core.errors import InputFault
from engine.core.json_store import JsonStore, with_row
from engine.placement.types import Overrides
from engine.runner.load_limits import KV_TYPES


class LoadOverrides:
    """Model id to the user's choices."""

    def __init__(self, path: Path | None = None) -> None:
        self._store = JsonStore(path, dict[str, LoadChoices], dict)

    def get(self, model_id: str) -> LoadChoices:
        """The user's choices for this model."""
        return self._store.get().get(model_id, LoadChoices())

    def set(self, model_id: str, choices: LoadChoices, context_train: int = 0) -> None:
        """Replace the choices for a model; none at all leaves everything to Tessera.

        Raises: InputFault: an unknown cache type, or more context than the model was trained for.
        """
        check_kv_type(choices.kv_type)
        if context_train and (choices.n_ctx or 0) > context_train:
            raise InputFault(
                f"{model_id} was trained for {context_train} tokens of context, not {choices.n_ctx}.", "n_ctx"
            )
        self._store.change(lambda old: with_row(old, model_id, choices if choices != LoadChoices() else None))


def check_kv_type(name: str | None) -> None:
    """Raises: InputFault: no type of cache goes by that name."""
    if name is not None and name not in KV_TYPES:
        raise InputFault(f"{name!r} is not a cache type; use one of {', '.join(KV_TYPES)}.", "kv_type")


def with_choices(overrides: Overrides, choices: LoadChoices) -> Overrides:
    """The server's overrides with what was chosen for one model."""
    given = {
        name: value
        for name in ("n_ctx", "n_parallel", "kv_type", "n_gpu_layers", "n_threads")
        if (value := getattr(choices, name)) is not None
    }
    return msgspec.structs.replace(overrides, **given)
