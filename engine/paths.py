"""Where Tessera keeps things. `TESSERA_HOME` moves every folder at once."""

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

BUNDLED_MODELS = Path(__file__).resolve().parent.parent / "assets" / "models"


@dataclass(frozen=True)
class Paths:
    """The five folders of an installation. They are made by whoever first writes to them."""

    config: Path
    models: Path
    state: Path
    cache: Path
    logs: Path

    @property
    def server_file(self) -> Path:
        """Address and token of the running server, readable by this user only."""
        return self.state / "server.json"


def user_paths() -> Paths:
    """The folders for this user: below TESSERA_HOME if set, else where the system keeps such things."""
    home = os.environ.get("TESSERA_HOME")
    if home:
        root = Path(home).expanduser().absolute()
        return Paths(root / "config", root / "models", root / "state", root / "cache", root / "logs")
    dirs = platformdirs.PlatformDirs("tessera", appauthor=False)
    data = Path(dirs.user_data_dir)
    return Paths(
        config=Path(dirs.user_config_dir),
        models=data / "models",
        state=Path(dirs.user_state_dir),
        cache=Path(dirs.user_cache_dir),
        logs=Path(dirs.user_log_dir),
    )
