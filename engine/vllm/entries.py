"""Folders of the library as vLLM would run them: each is beside itself under another name."""

from collections.abc import Iterable

import msgspec

from engine.library.types import ModelEntry
from engine.vllm.detect import PREFIX, executable


def vllm_entries(entries: Iterable[ModelEntry]) -> tuple[ModelEntry, ...]:
    """One for each folder of safetensors; none where there is no vLLM."""
    if executable() is None:
        return ()
    return tuple(
        msgspec.structs.replace(
            entry,
            id=f"{PREFIX}{entry.id}",
            name=f"{entry.name} (vLLM)",
            format="vllm",
            files=(),  # those of the folder itself, which has its own entry
            folder=f"{PREFIX}{entry.folder}",
        )
        for entry in entries
        if entry.format == "safetensors" and entry.state == "online"
    )
