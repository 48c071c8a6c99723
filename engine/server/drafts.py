"""Which model drafts for which, set by the user and kept in a file."""

import json
import os
from pathlib import Path

from engine.errors import BadModelFile
from quantize.errors import QuantizeError
from quantize.gguf_split import read_gguf_model
from quantize.gguf_types import LazyArray

# As the runner has it (draft_model.py): unused entries at the end may differ.
MAX_SIZE_DIFFERENCE = 128


class Drafts:
    """Model id to the name of its draft model; `default` drafts for every other model of the same vocabulary."""

    def __init__(self, path: Path | None = None, default: str | None = None) -> None:
        self._path = path
        self.default = default
        self._names: dict[str, str] = {}
        try:
            found = json.loads(path.read_text("utf-8")) if path is not None else {}
        except (OSError, ValueError):  # a damaged file counts as empty: nothing is lost but a wish
            found = {}
        if isinstance(found, dict):
            self._names = {str(k): v for k, v in found.items() if isinstance(v, str)}

    def get(self, model_id: str) -> str | None:
        """The draft model that was chosen for this one."""
        return self._names.get(model_id)

    def set(self, model_id: str, draft: str | None) -> None:
        """Choose a draft model; None goes back to none."""
        if draft is None:
            self._names.pop(model_id, None)
        else:
            self._names[model_id] = draft
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self._names, indent=1, sort_keys=True), "utf-8")
        temporary.replace(self._path)


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
        except QuantizeError as error:
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
