"""Stores the residual stream before a layer on disk, for every window of a text."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from quantize.files.measurement_folder import write_array
from quantize.native.split_points import Cuts, SplitPoint

Floats = npt.NDArray[np.float32]


class ResidualCache:
    """A folder of arrays (tokens, width), float32: one file per layer and window."""

    def __init__(self, folder: Path, windows: int) -> None:
        self._folder = folder
        self._windows = windows
        folder.mkdir(exist_ok=True)

    def last_before(self, cuts: Cuts, name: str) -> SplitPoint | None:
        """The last split point before a weight or node whose stream is stored for every window."""
        whole = [n for n in cuts.by_layer if all(self._path(n, w).exists() for w in range(self._windows))]
        return cuts.before(name, whole)

    def read(self, cut: SplitPoint, window: int) -> Floats:
        """The stored stream of one window before a layer."""
        values: Floats = np.load(self._path(cut.layer, window))
        return values

    def write(self, cut: SplitPoint, window: int, values: Floats) -> None:
        """Store one window's stream. Raises: DiskFull."""
        write_array(self._path(cut.layer, window), values)

    def keep(self, cut: SplitPoint | None) -> None:
        """Remove all streams except those of this split point."""
        for path in self._folder.glob("*.npy"):
            if cut is None or not path.name.startswith(f"{cut.layer}."):
                path.unlink(missing_ok=True)

    def _path(self, layer: int, window: int) -> Path:
        return self._folder / f"{layer}.{window}.npy"
