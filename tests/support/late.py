"""Clients that take long to import: the first test that uses one imports it, not every process that collects."""

import importlib
from typing import Any


class Late:
    """Stands for a module until something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks at every name of a file for marks of its own
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


asyncssh, ollama, openai = Late("asyncssh"), Late("ollama"), Late("openai")
