"""Loads a model in this process as the program would load it on this CPU."""

import tempfile
from pathlib import Path

from engine.core.paths import Paths
from engine.placement.placer import Placer, read_shape
from engine.placement.resources import open_resources
from engine.placement.types import PlacementLimits
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.model import LoadedModel, load
from engine.runner.protocol import LoadSettings


def chosen_on_cpu(settings: LoadSettings) -> LoadSettings:
    """`settings` with what dispatch chooses for the CPU of a machine on which nothing was measured yet."""
    with tempfile.TemporaryDirectory(prefix="own-side-") as folder:
        parts = (Path(folder) / name for name in ("config", "models", "state", "cache", "logs"))
        placer = Placer(open_resources(Paths(*parts)))
        pin = PlacementLimits(device="cpu")
        return placer.defaults("benchmark", read_shape(settings.path), settings, pin).settings


def load_as_chosen(settings: LoadSettings) -> LoadedModel:
    """Load with the kernels, attention and form of the weights that dispatch chooses; `settings` have the rest."""
    settings = chosen_on_cpu(settings)
    return load(start_backends(tiles=settings.tiles), settings, lambda _fraction: True)
