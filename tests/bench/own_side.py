"""Loads a model in this process as the program would load it on this CPU."""

import msgspec

from devices.backends.cpu_kernels import tiles_library
from devices.backends.libraries import library_folder
from devices.detect import inventory
from devices.host_real import RealHost
from engine.placement.chip_speeds import bandwidth
from engine.placement.cpu_choices import file_weights, prompt_tiles, tile_attention
from engine.placement.placer import read_shape
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.model import LoadedModel, load
from engine.runner.protocol import LoadSettings


def load_as_chosen(settings: LoadSettings) -> LoadedModel:
    """Load with the kernels, attention and form of the weights that dispatch chooses; `settings` have the rest."""
    machine, shape = inventory(RealHost()), read_shape(settings.path)
    settings = msgspec.structs.replace(settings, flash_attn="auto")
    settings = file_weights(settings, shape, machine.isa, bandwidth(machine.devices[0])) or settings
    if tiles_library(library_folder()) is not None:
        settings = prompt_tiles(settings, shape, machine.isa) or settings
        settings = tile_attention(settings, shape, machine.isa) or settings
    return load(start_backends(tiles=settings.tiles), settings, lambda _fraction: True)
