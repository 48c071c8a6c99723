"""Plugin for vLLM's own tests: they run against a running Tessera server; vLLM itself need not be installed.

Loaded by run.py with `-p`. Modules of vLLM and torch are empty shells, so a test that computes with them fails.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any, ClassVar, Self
from unittest.mock import MagicMock

import anthropic
import openai

URL, MODEL = os.environ["CONFORMANCE_SERVER"].split(" ")
KEY = "unused"


class RemoteOpenAIServer:
    """The interface to a server that vLLM's tests expect."""

    DUMMY_API_KEY = KEY
    url_root = URL

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def url_for(self, *parts: str) -> str:
        """An address below the server's."""
        return "/".join((URL, *(part.strip("/") for part in parts)))

    def get_client(self, **options: Any) -> openai.OpenAI:
        """OpenAI's client."""
        return openai.OpenAI(**{"base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0, **options})

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        """OpenAI's client."""
        return openai.AsyncOpenAI(**{"base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0, **options})

    def get_async_client_anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        """Anthropic's client."""
        return anthropic.AsyncAnthropic(**{"base_url": URL, "api_key": KEY, "max_retries": 0, **options})


class _Shell(ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class _Shells(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        shell = name.partition(".")[0] in {"vllm", "torch", "transformers", "huggingface_hub"}
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if shell else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Shell(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


sys.meta_path.insert(0, _Shells())
utils = _Shell("tests.utils")
utils.RemoteOpenAIServer = RemoteOpenAIServer  # type: ignore[attr-defined]
utils.ROCM_EXTRA_ARGS, utils.ROCM_ENV_OVERRIDES = [], {}  # type: ignore[attr-defined]
sys.modules["tests.utils"] = utils
