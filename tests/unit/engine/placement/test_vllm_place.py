"""Placement of a folder by vLLM and its reserved memory, on a recorded laptop and with more GPUs."""

import copy
import json

import pytest
from msgspec.structs import replace

from devices.memory_ledger import Ledger
from devices.recording import RecordedHost
from devices.report import recorded_report
from engine.core.errors import BadModelFile, NotEnoughMemory
from engine.message_catalog import sentences
from engine.placement.external import (
    GPU_WORK_BYTES,
    HOST_BYTES,
    admit_external,
    external_report,
    place_external,
)
from engine.placement.external import describe_folder as describe
from engine.runner.protocol import ExternalProgram, LoadSettings
from tests.support.machines.machines import machines

GB, GIB = 10**9, 1 << 30
# Qwen3-8B's own numbers, and weights of 4 bits.
CONFIG = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
TOKEN = 2 * 2 * 36 * 8 * 128
WEIGHTS = 4 * GB
VLLM = ExternalProgram(name="vllm", kind="vllm", program="/usr/bin/vllm")
CUDA = {"name": "CUDA0", "description": "NVIDIA GeForce RTX 4060 Laptop GPU", "kind": "gpu"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(WEIGHTS)  # sparse: nothing is written
    return tmp_path


def machine(*vram):
    """The recorded laptop, its NVIDIA GPU replaced by GPUs of these sizes."""
    recording = copy.deepcopy(machines()["nv-hybrid-addw4"])
    device = {**CUDA, "device_id": "0000:01:00.0", "total_bytes": 6 * GIB, "free_bytes": 6 * GIB}
    recording["backends"] = [{"backend": "cuda", "library": "x.so", "state": "usable", "devices": [device]}]
    found = recorded_report(RecordedHost(recording))
    card = next(d for d in found.devices if d.vendor == "NVIDIA")
    cards = [
        replace(
            card,
            id=f"0000:0{n}:00.0",
            memory=replace(card.memory, physical_bytes=size, dedicated_bytes=size, available_bytes=size),
        )
        for n, size in enumerate(vram, 1)
    ]
    return replace(found, devices=(*(d for d in found.devices if d is not card), *cards))


def settings(folder, cells=16_384):
    return LoadSettings(path=str(folder), n_ctx=4096, kv_cells=cells, n_parallel=4, external=VLLM)


def test_the_cache_of_a_token_is_read_from_the_configuration(folder):
    assert describe(folder).token_bytes == TOKEN
    assert describe(folder).weights_bytes == WEIGHTS
    (folder / "config.json").write_text(
        json.dumps({"text_config": {**CONFIG, "head_dim": None, "hidden_size": 4096}})
    )
    assert describe(folder).token_bytes == TOKEN, "of a model with pictures, and by its width"


@pytest.mark.parametrize("config", ["{}", '{"num_hidden_layers": true}', "[", '{"num_hidden_layers": 1e99}'])
def test_a_configuration_that_does_not_say_is_refused(folder, config):
    (folder / "config.json").write_text(config)
    with pytest.raises(BadModelFile):
        describe(folder)


def test_the_gpu_with_most_room_gives_a_part_that_holds_it_all(folder):
    there = machine(8 * GIB, 24 * GIB)
    ledger = Ledger(lambda: there)
    placed = place_external(settings(folder), there, ledger)
    assert (placed.device, placed.backend, placed.fits) == ("0000:02:00.0", "vllm", True)
    assert placed.settings.provider == "cuda:1"
    wanted = WEIGHTS + 16_384 * TOKEN + GPU_WORK_BYTES
    given = placed.settings.gpu_frac * 24 * GIB
    assert wanted <= given < wanted + 0.011 * 24 * GIB
    assert placed.need.device_bytes(placed.device) == pytest.approx(given, abs=1)
    assert placed.need.device_bytes("cpu") == HOST_BYTES
    before = ledger.available(placed.device)
    admit_external("m", placed.settings, there, ledger)
    assert ledger.available(placed.device) == pytest.approx(before - given, abs=1)


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(folder):
    there = machine(8 * GIB)
    ledger = Ledger(lambda: there)
    placed = place_external(settings(folder, cells=65_536), there, ledger)
    assert not placed.fits
    assert not external_report("m", placed, there, ledger).fits
    with pytest.raises(NotEnoughMemory, match="4060"):
        admit_external("m", placed.settings, there, ledger)
    assert ledger.reservations() == ()


def test_without_a_gpu_the_cpu_build_gets_whole_gibibytes_of_cache(folder):
    there = machine()
    placed = place_external(settings(folder), there, Ledger(lambda: there))
    assert (placed.device, placed.settings.provider) == ("cpu", "cpu")
    assert "CPU build" in " ".join(sentences(placed.reasons))
    kv = placed.need.part_bytes("kv")
    assert kv == 3 * GIB  # 2.25 rounded up
    assert placed.need.device_bytes("cpu") == WEIGHTS + kv + HOST_BYTES
