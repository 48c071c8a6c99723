"""Which model drafts for which, set by the user and kept in a file."""

from pathlib import Path

from devices.errors import TesseraError
from engine.core.errors import BadModelFile
from engine.core.json_store import JsonStore, with_row
from quantize.files.gguf_header import LazyArray
from quantize.files.gguf_split import read_gguf_model

# As the runner has it (draft_model.py): unused entries at the end may differ.
MAX_SIZE_DIFFERENCE = 128


class Drafts:
    """Model id to the name of its draft model; `default` drafts for every other model of the same vocabulary."""

    def __init__(self, path: Path | None = None, default: str | None = None) -> None:
        self._store = JsonStore(path, dict[str, str], dict)
        self.default = default

    def get(self, model_id: str) -> str | None:
        """The draft model that was chosen for this one."""
        return self._store.get().get(model_id)

    def set(self, model_id: str, draft: str | None) -> None:
        """Choose a draft model; None goes back to none."""
        self._store.change(lambda old: with_row(old, model_id, draft))


def unfit_draft(target: Path, draft: Path) -> str | None:
    """Why one file cannot draft for the other, from their headers; None when it can. The runner checks each token.

    Raises: BadModelFile.
    """
    if target.resolve() == draft.resolve():
        return "a model cannot draft for itself"
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
        return f"its tokenizer is {draft_kind}/{draft_pre}, this model's {kind}/{pre}"
    if abs(size - draft_size) > MAX_SIZE_DIFFERENCE:
        return f"its vocabulary has {draft_size} tokens, this model's {size}"
    return None
