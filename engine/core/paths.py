"""The folders that Tessera uses. `TESSERA_HOME` moves all of them, `TESSERA_MODELS_FOLDER` only the models."""

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from devices.errors import InputFault

BUNDLED_MODELS = Path(__file__).resolve().parents[2] / "assets" / "models"


def installed_models() -> Path:
    """The folder where start.py installs the first model; `TESSERA_INSTALLED_MODELS` names another folder."""
    folder = os.environ.get("TESSERA_INSTALLED_MODELS")
    return Path(folder) if folder else Path(sys.prefix) / "share" / "tessera" / "models"


def installed_speech() -> Path:
    """The folder where start.py installs the speech model; `TESSERA_SPEECH` names another folder."""
    folder = os.environ.get("TESSERA_SPEECH")
    return Path(folder) if folder else installed_models().parent / "speech"


def whole_path(text: str, field: str) -> Path:
    """Return the absolute path that a client named. Raises: InputFault: it is relative."""
    place = Path(text)
    with contextlib.suppress(RuntimeError):  # there is no such user
        place = place.expanduser()
    if not place.is_absolute():
        raise InputFault(f"{text!r} is not a whole path; the server's folder is not yours.", field)
    return place


def is_installed(path: Path) -> bool:
    """Whether the path is inside the installation: nothing may be written next to it."""
    return path.is_relative_to(BUNDLED_MODELS) or path.is_relative_to(installed_models())


@dataclass(eq=False)
class Paths:
    """The folders of an installation. Each is created at the first write to it.

    All parts of a server share one object, so that a job can change `models` when the files are in another folder.
    `data` is the folder of programs that the user installed; by default it contains the models.
    """

    config: Path
    models: Path
    state: Path
    cache: Path
    logs: Path
    data: Path | None = None

    @property
    def converter(self) -> Path:
        """The folder of llama.cpp's converter and its packages, if the user installed it.

        Never next to a chosen models folder: a drive from elsewhere could have a program there.
        """
        return (self.data or self.models.parent) / "converter"

    @property
    def server_file(self) -> Path:
        """Address and token of the running server, readable by this user only."""
        return self.state / "server.json"


def user_paths() -> Paths:
    """Return the folders of this user: below TESSERA_HOME if set, else the system's standard folders."""
    home = os.environ.get("TESSERA_HOME")
    folder = os.environ.get("TESSERA_MODELS_FOLDER")
    models = Path(folder).expanduser().absolute() if folder else None
    if home:
        root = Path(home).expanduser().absolute()
        models = models or root / "models"
        return Paths(root / "config", models, root / "state", root / "cache", root / "logs", root)
    dirs = platformdirs.PlatformDirs("tessera", appauthor=False)
    return Paths(
        config=Path(dirs.user_config_dir),
        models=models or Path(dirs.user_data_dir) / "models",
        state=Path(dirs.user_state_dir),
        cache=Path(dirs.user_cache_dir),
        logs=Path(dirs.user_log_dir),
        data=Path(dirs.user_data_dir),
    )
