"""GPU layers while a model is measured: as in a load, or fewer if three files must fit."""

import copy

import pytest
from gguf import GGMLQuantizationType

from devices.recording import RecordedHost
from engine.core.paths import Paths
from engine.job_kinds.quantize.options import QuantizeOptions
from engine.job_kinds.quantize.request import gpu_layers_for, layers_on_gpu
from engine.placement.resources import MachineState, open_resources
from quantize.ggml_types import GgmlType
from tests.support.machines.machines import machines
from tests.support.models.fake_models import shape
from tests.support.models.shapes import scaled, write_hollow

LAYERS = 36
RECORDING = machines()["nv-hybrid-addw4"]  # a laptop with an RTX 4060
CUDA = {
    "name": "CUDA0",
    "description": "NVIDIA GeForce RTX 4060 Laptop GPU",
    "kind": "gpu",
    "device_id": "0000:01:00.0",
}


@pytest.fixture
def resources(tmp_path):
    """With or without a GPU driver → what places loads there."""

    def made(*, driver):
        recording = copy.deepcopy(RECORDING)
        found = {**CUDA, "total_bytes": 6141 << 20, "free_bytes": 5900 << 20}
        usable = {"backend": "cuda", "library": "libggml-cuda.so", "state": "usable", "devices": [found]}
        recording["backends"] = [usable] if driver else []
        state = MachineState(RecordedHost(recording))
        state.full()
        return open_resources(Paths(*(tmp_path / name for name in "abcde")), state)

    return made


def test_as_many_layers_as_leave_room_for_both_files_and_none_without_a_driver(resources):
    kinds = (GgmlType.Q8_0, GgmlType.Q4_K, GgmlType.Q2_K)
    with_gpu, without = resources(driver=True), resources(driver=False)
    coarse, middle, fine = (layers_on_gpu("big.gguf", shape(kind), with_gpu) for kind in kinds)
    assert 0 < coarse < middle < fine == LAYERS + 1
    assert layers_on_gpu("big.gguf", shape(GgmlType.Q2_K), without) == 0


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory):
    """Eight layers with more weights than a CPU reads in the time of a GPU's kernel launches."""
    wide = scaled("llama", layers=8, vocab=1000, ffn=16384, qtype=GGMLQuantizationType.Q8_0)
    return write_hollow(tmp_path_factory.mktemp("offload") / "wide.gguf", wide)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, 9),
        ({"gpu_layers": 0}, 0),
        ({"gpu_layers": 3}, 3),
        ({"export_plan": "/somewhere/a.json"}, 0),
        ({"export_plan": "/somewhere/a.json", "gpu_layers": 3}, 0),
        ({"budget_bytes": None, "mix": "Q4_K_M", "tier": None}, 0),
        ({"budget_bytes": None, "mix": "Q4_K_M", "tier": None, "verify": True}, 9),
    ],
)
def test_what_is_asked_for_counts_and_sums_that_travel_are_the_processors(resources, changes, layers, wide_model):
    options = QuantizeOptions(**({"model": str(wide_model), "budget_bytes": 5_000_000} | changes))
    assert gpu_layers_for(wide_model, options, resources(driver=True)) == layers
