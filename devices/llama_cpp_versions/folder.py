"""Folder of the versions, and of the `llama_cpp` package in use."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any, Final

from devices.environment import user_folder
from devices.llama_cpp_versions.names import PACKAGE, SHIPPED
from devices.llama_cpp_versions.store import VersionStore

# Set for the children of one model, or by the user: a version, or `shipped`. Overrides the stored choice.
VARIABLE: Final = "TESSERA_ENGINE_VERSION"


def engines_folder() -> Path:
    """Folder of the user's versions."""
    return user_folder("engines", "TESSERA_ENGINES")


def chosen_version(model: str | None = None) -> str | None:
    """The version for this model file, or for all; None is the shipped one. Reads one small file."""
    version = os.environ.get(VARIABLE)
    if version:
        return None if version == SHIPPED else version
    return VersionStore(engines_folder()).chosen(model)


def shipped_package() -> Path | None:
    """The `llama_cpp` that was installed with this program, found without importing it."""
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def package_folder() -> Path | None:
    """The `llama_cpp` that this process must load; None if there is none.

    Raises: EngineVersionRefused: TESSERA_ENGINE_VERSION names one that is not installed.
    """
    version = chosen_version()
    return shipped_package() if version is None else VersionStore(engines_folder()).package(version)


def child_variables(model: str) -> dict[str, str]:
    """Extra variables for the children that load this model; empty if it uses the version for all."""
    version, usual = chosen_version(model), chosen_version()
    return {} if version == usual else {VARIABLE: version or SHIPPED}


LOW_LEVEL: Final = f"{PACKAGE}.llama_cpp"


def low_level_bindings(folder: Path) -> Any:
    """`llama_cpp.llama_cpp` of the package in `folder`, imported without running the package's `__init__`.

    That `__init__` imports the unused high-level classes (and diskcache, which unpickles); they took an eighth of
    the start of a measuring child.
    Raises: OSError, RuntimeError: its libraries do not load.
    """
    if PACKAGE not in sys.modules:
        package = types.ModuleType(PACKAGE)
        package.__path__ = [str(folder)]
        package.__spec__ = importlib.machinery.ModuleSpec(PACKAGE, None, is_package=True)
        package.__spec__.submodule_search_locations = [str(folder)]  # other code in this process looks for it there
        sys.modules[PACKAGE] = package
    return importlib.import_module(LOW_LEVEL)
