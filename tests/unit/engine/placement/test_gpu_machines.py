"""Offload on recorded machines with a GPU, for an 8 B model that is known by its header."""

import copy

import msgspec
import pytest

from devices.memory_ledger import Ledger
from devices.recording import RecordedHost
from devices.report import recorded_report
from engine.message_catalog import command, sentences
from engine.placement.estimate import ledger_amounts
from engine.placement.fit_report import fit_report
from engine.placement.history import PlacementHistory
from engine.placement.steps import place
from engine.placement.types import NO_OVERRIDES, PlacementLimits
from engine.runner.protocol import LoadSettings
from quantize.ggml_types import GgmlType
from tests.support.machines.machines import machines, reports
from tests.support.models.fake_models import shape

GIB = 1 << 30
LAYERS = 36
RECORDINGS = machines()
RTX_4060 = "0000:01:00.0"
# A device as the child reports it; the recordings contain no log of these backends.
CUDA = {"name": "CUDA0", "description": "NVIDIA GeForce RTX 4060 Laptop GPU", "kind": "gpu", "device_id": RTX_4060}
INTEL = {"name": "Vulkan0", "description": "Intel(R) UHD Graphics", "kind": "igpu", "device_id": "0000:00:02.0"}


def with_backends(name, *found):
    """A recorded machine on which these backends were tried: (backend, library, device, total, free)."""
    recording = copy.deepcopy(RECORDINGS[name])
    recording["backends"] = [
        {
            "backend": backend,
            "library": library,
            "state": "usable",
            "devices": [{**device, "total_bytes": total, "free_bytes": free}],
        }
        for backend, library, device, total, free in found
    ]
    return recorded_report(RecordedHost(recording))


@pytest.fixture(scope="module")
def laptop():
    """A laptop with an RTX 4060 of 8 GB, of which the recording shows 6 GiB, and an Intel iGPU."""
    return with_backends(
        "nv-hybrid-addw4",
        ("cuda", "libggml-cuda.so", CUDA, 6141 << 20, 5900 << 20),
        ("vulkan", "libggml-vulkan.so", INTEL, 31 * GIB, 28 * GIB),
    )


def placed(machine, kind=GgmlType.Q4_K, overrides=NO_OVERRIDES, **changes):
    book = Ledger(lambda: machine)
    settings = LoadSettings(path="big.gguf", n_ctx=4096, **changes)
    return place(shape(kind), settings, overrides, machine, book, PlacementHistory(None)), book


def reserve(placement, book):
    book.reserve("big", ledger_amounts(placement.need))
    return book


def test_the_discrete_gpu_is_chosen_and_gets_all_layers_that_fit(laptop):
    placement, book = placed(laptop)
    assert (placement.device, placement.backend) == (RTX_4060, "cuda")
    assert placement.settings.devices == ("CUDA0",)
    assert placement.settings.n_gpu_layers == LAYERS + 1
    assert placement.settings.use_mmap is True
    assert sentences(placement.reasons)[0].startswith("all layers fit")
    assert {(a.device, a.backend) for a in placement.alternatives} >= {("cpu", "cpu"), ("0000:00:02.0", "vulkan")}
    reserve(placement, book)


def test_a_larger_file_is_split_and_the_split_is_the_largest_that_fits(laptop):
    placement, book = placed(laptop, GgmlType.Q8_0, PlacementLimits(device="cuda"))
    layers = placement.settings.n_gpu_layers
    assert 0 < layers < LAYERS
    assert f"{layers} of {LAYERS} layers fit" in " ".join(sentences(placement.reasons))
    assert placement.fits
    reserve(placement, book)
    more, _ = placed(laptop, GgmlType.Q8_0, PlacementLimits(device="cuda", n_gpu_layers=layers + 1))
    assert not more.fits
    on_gpu, on_cpu = (placement.need.device_bytes(d) for d in (RTX_4060, "cpu"))
    assert on_gpu > 4 * GIB
    assert on_gpu + on_cpu > shape(GgmlType.Q8_0).file_bytes
    weights = {p.device: p.num_bytes for p in placement.need.parts if p.name == "weights"}
    assert weights[RTX_4060] / sum(weights.values()) == pytest.approx(layers / LAYERS, abs=0.08)


def test_too_many_pinned_layers_can_be_given_up(laptop):
    placement, book = placed(laptop, GgmlType.Q8_0, PlacementLimits(device="cuda", n_gpu_layers=LAYERS))
    assert not placement.fits
    report = fit_report("big", shape(GgmlType.Q8_0), placement.settings, laptop, book, gpu=RTX_4060)
    (way,) = [way for way in report.fit_options if way.kind == "offload"]
    free, _ = placed(laptop, GgmlType.Q8_0, PlacementLimits(device="cuda"))
    assert command(way.change) == f"--layers {free.settings.n_gpu_layers}"
    at = msgspec.structs.replace(placement.settings, n_gpu_layers=free.settings.n_gpu_layers)
    assert fit_report("big", shape(GgmlType.Q8_0), at, laptop, Ledger(lambda: laptop), gpu=RTX_4060).fits


def test_a_second_model_finds_what_the_first_left(laptop):
    first, book = placed(laptop)
    reserve(first, book)
    settings = LoadSettings(path="big.gguf", n_ctx=4096)
    second = place(
        shape(GgmlType.Q4_K),
        settings,
        PlacementLimits(device="cuda"),
        laptop,
        book,
        PlacementHistory(None),
        owner="b",
    )
    assert second.settings.n_gpu_layers < LAYERS // 2
    total = first.need.device_bytes(RTX_4060) + second.need.device_bytes(RTX_4060)
    assert total <= laptop.device(RTX_4060).memory.budget_bytes


def test_a_longer_context_takes_layers_off_the_gpu(laptop):
    def layers(n_ctx):
        settings = LoadSettings(path="big.gguf", n_ctx=n_ctx)
        overrides, memory = PlacementLimits(device="cuda"), PlacementHistory(None)
        return place(shape(GgmlType.Q4_K), settings, overrides, laptop, Ledger(lambda: laptop), memory).settings

    found = [layers(n_ctx).n_gpu_layers for n_ctx in (4096, 16384, 32768)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] > 0


@pytest.mark.parametrize("name", RECORDINGS)
def test_no_machine_is_promised_more_than_it_has(name):
    """No choice and every pin, on each machine: what is placed as fitting can be reserved."""
    machine = reports()[name]
    backends = {r.backend for d in machine.devices for r in d.runtimes if d.kind in {"igpu", "dgpu"}}
    for pin in (None, "cpu", *backends):
        placement, book = placed(machine, GgmlType.Q4_K, PlacementLimits(device=pin))
        if placement.fits:
            reserve(placement, book)
        if pin in backends:
            assert placement.backend == pin
            layers = placement.settings.n_gpu_layers
            assert layers == LAYERS + 1 or f"{layers} of {LAYERS} layers fit" in " ".join(
                sentences(placement.reasons)
            )


@pytest.mark.parametrize("name", ["sh-linux-amdvlk-vs-rocm", "sh-framework-desktop-linux", "sh-windows-rocm714"])
def test_unified_memory_takes_the_whole_model_and_reads_the_file(name):
    machine = reports()[name]
    placement, book = placed(machine)
    assert machine.device(placement.device).kind == "igpu"
    assert placement.settings.n_gpu_layers == LAYERS + 1
    assert placement.settings.use_mmap is False
    before = book.available("cpu", machine)
    reserve(placement, book)
    assert book.available("cpu", machine) < before, "one pool: what the GPU takes is missing for the processor"


def test_a_driver_that_failed_leaves_the_processor_and_says_why():
    machine = reports()["sh-linux-driver-failed"]
    placement, _ = placed(machine)
    assert placement.device == "cpu"
    assert "refused this GPU" in sentences(placement.reasons)[0]
