"""What the user wants a model to sample with, kept in a file that the terminal and the server share."""

from collections.abc import Mapping
from pathlib import Path

from engine.core.errors import InputFault
from engine.core.json_store import JsonStore, with_row
from engine.core.sampling import Recommended, recommended
from engine.core.sampling_families import of_card
from engine.library.types import ModelEntry
from quantize.files.sampling_keys import BOUNDS, Value, checked

_SAME = {name: name for name in BOUNDS}


class SamplingOverrides:
    """Model id to fields and values."""

    def __init__(self, path: Path | None = None) -> None:
        self._store = JsonStore(path, dict[str, dict[str, Value]], dict)

    def get(self, model_id: str) -> dict[str, Value]:
        """The user's values for this model."""
        return checked(self._store.get().get(model_id, {}), _SAME)

    def set(self, model_id: str, values: Mapping[str, Value]) -> None:
        """Replace the values of a model; none at all goes back to its recommendation.

        Raises: InputFault: an unknown field or a value out of bounds.
        """
        fit = checked(values, _SAME)
        wrong = next((name for name in values if name not in fit), None)
        if wrong is not None:
            if wrong not in BOUNDS:
                raise InputFault(f"{wrong} is not known; there are {', '.join(BOUNDS)}.", wrong)
            low, high = BOUNDS[wrong]
            raise InputFault(f"{wrong} must be a number from {low:g} to {high:g}, not {values[wrong]}.", wrong)
        self._store.change(lambda old: with_row(old, model_id, fit or None))


def recommended_for(entry: ModelEntry, overrides: SamplingOverrides) -> Recommended:
    """What the user, the file, the publisher and the card say about sampling from a model."""
    names = (entry.id, entry.name, entry.details.title, entry.origin.repo or "")
    chats = "chat" in entry.capabilities
    return recommended(
        user=overrides.get(entry.id),
        file=entry.details.sampling,
        publisher=entry.details.publisher_sampling,
        card=of_card(entry.architecture, names) if chats else None,
        reasons="reasoning" in entry.capabilities,
    )
