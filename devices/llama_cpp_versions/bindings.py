"""llama.cpp's low-level bindings without the rest of their package."""

import importlib
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any, Final

from devices.llama_cpp_versions.names import PACKAGE

LOW_LEVEL: Final = f"{PACKAGE}.llama_cpp"


def low_level_bindings(folder: Path) -> Any:
    """`llama_cpp.llama_cpp` of the package in `folder`, imported without running the package's `__init__`.

    That `__init__` pulls in the high-level classes (and diskcache, which unpickles), which nobody here uses; an
    eighth of the start of a child that measures was theirs.
    Raises: OSError, RuntimeError: its libraries do not load.
    """
    if PACKAGE not in sys.modules:
        package = types.ModuleType(PACKAGE)
        package.__path__ = [str(folder)]
        package.__spec__ = importlib.machinery.ModuleSpec(PACKAGE, None, is_package=True)
        package.__spec__.submodule_search_locations = [str(folder)]  # where others in this process look for it
        sys.modules[PACKAGE] = package
    return importlib.import_module(LOW_LEVEL)
