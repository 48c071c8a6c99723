"""Lazy imports for slow clients: only the first test that uses a client imports it, not each collecting process."""

import importlib
from typing import Any


class Late:
    """A module that is imported on first attribute access."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest checks all names of a file for its own marks
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


asyncssh, ollama, openai = Late("asyncssh"), Late("ollama"), Late("openai")
