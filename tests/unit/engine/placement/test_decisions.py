"""Placement of popular models on machines as sold, compared with what specialists report."""

import json
from pathlib import Path
from statistics import median

import pytest
from msgspec.structs import replace

from devices.chips import LINK, with_chips
from devices.memory_ledger import Ledger
from devices.types import CoreCounts, Device, Evidence, Memory, Runtime
from engine.message_catalog import sentence
from engine.placement.chip_speeds import chip_speeds, openvino_rates, peak_tflops, rates
from engine.placement.history import PlacementHistory
from engine.placement.speed import Forecast, bytes_per_token, effective_gbs, expected, main_type
from engine.placement.steps import place
from engine.placement.types import NO_OVERRIDES, PlacementLimits
from engine.runner.engine_args import EngineArgs
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo
from quantize.ggml_types import GgmlType
from tests.support.machines.opened_machines import GIB, assembled, names, opened, with_card, with_ram
from tests.support.models.published_shapes import MODELS

# The sources. kyuz0: amd-strix-halo-toolboxes; lhl: strix-halo-testing; nix: noamsto/nix-amd-ai; lc: llama.cpp.
HALO = "kyuz0, lhl: Vulkan (RADV) for short chats; all layers on the GPU; 16 cores read 118 of 256 GB/s"
POINT = "nix: on an HX 370 Vulkan decodes Gemma 4 26B 1.26 times as fast as ROCm"
XE2 = "lc#10879 on a 140V: 23 times the processor's prompts, twice its answers"
XE1 = "forecast a tie in answers and three times the prompts; published pairs of Meteor Lake agree (lc PR 5301)"
SMALL = "ollama#16667: an integrated GPU of two or four units is slower than its processor"
CARD = "ollama#16667, lc: an integrated GPU is used only where there is no card"
EXPERTS = "lc#15396: experts on the processor, all else on the card, -ub 2048"
METAL = "lc#4167: Metal, always"
ADRENO = "a public measurement of an X2 Elite Extreme: the processor writes Q4_K 1.7 times as fast as OpenCL"
NO_GPU = "there is none that works"

# Recorded machine: the placement of models of 4 B, of 8 B, and of 20 B and 30 B with 3 B active; and its source. A
# name is a kind of device and a backend; +N: the experts of N layers stay on the CPU (any number: +).
RECORDED = {
    "sh-framework-desktop-linux": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan", HALO),
    "sh-flow-z13-linux-gtt96": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan", HALO),
    "sh-linux-carveout64": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan", HALO),
    "sh-linux-overcommit": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan", HALO),
    "sh-linux-halved": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan", HALO),
    "sh-linux-amdvlk-vs-rocm": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan", HALO),
    "sh-zbook-ultra-64": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan", HALO),
    "sh-linux-driver-failed": ("cpu/cpu", "cpu/cpu", "cpu/cpu", "cpu/cpu", NO_GPU),
    "sh-linux-egpu-rdna4": ("dgpu/vulkan", "dgpu/vulkan", "dgpu/vulkan", "igpu/vulkan", HALO + "; 16 GB"),
    "sh-windows-dxgi-discrete": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan", HALO),
    "sh-windows-rocm714": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan+", HALO + "; it gets 16 GiB"),
    "sh-wsl2": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan", HALO),
    "sp-hx370-pci": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan+", POINT),
    "sp-proart-px13-dmi": ("cpu/cpu", "cpu/cpu", "cpu/cpu", "cpu/cpu", NO_GPU),
    "krk-linux": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan+", POINT),
    "phx-8600g": ("cpu/cpu", "cpu/cpu", "cpu/cpu", "cpu/cpu", NO_GPU),
    "hawk-ryzen7-260-win": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan+", "normiebench#8, #10"),
    "mtl-zbook-power-g11": ("dgpu/cuda", "dgpu/cuda", "dgpu/cuda+", "dgpu/cuda+", CARD),
    "mtl-155h": ("cpu/cpu", "cpu/cpu", "cpu/cpu", "cpu/cpu", NO_GPU),
    "arl-h-win": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "cpu/cpu", XE1),
    "arl-275hx-npu-present-unusable": ("cpu/cpu", "cpu/cpu", "cpu/cpu", "cpu/cpu", NO_GPU),
    "lnl-256v": ("igpu/vulkan", "igpu/vulkan", "cpu/cpu", "cpu/cpu", XE2 + "; 16 GB hold neither 20B nor 30B"),
    "ptl-nuc16-no-driver": ("igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "igpu/vulkan", "as " + XE2),
    "x1-26-100": ("cpu/cpu", "cpu/cpu", "cpu/cpu", "cpu/cpu", NO_GPU),
    "x2-elite-windows": ("cpu/cpu", "cpu/cpu", "cpu/cpu", "cpu/cpu", ADRENO),
    "m4-max": ("igpu/metal", "igpu/metal", "igpu/metal", "igpu/metal", METAL),
    "m2": ("igpu/metal", "igpu/metal", "igpu/metal+", "cpu/cpu", METAL + "; 16 GB"),
    "m5-max": ("igpu/metal", "igpu/metal", "igpu/metal", "igpu/metal", METAL),
    "m4-no-devices": ("igpu/metal", "igpu/metal", "igpu/metal+", "cpu/cpu", METAL + "; 16 GB"),
    "nv-hybrid-addw4": ("dgpu/cuda", "dgpu/cuda", "dgpu/cuda+", "dgpu/cuda+", EXPERTS),
    "vm-firecracker": ("cpu/cpu", "cpu/cpu", "cpu/cpu", "cpu/cpu", NO_GPU),
    "vm-llvmpipe": ("cpu/cpu", "cpu/cpu", "cpu/cpu", "cpu/cpu", NO_GPU),
    "container-capped": ("cpu/cpu", "cpu/cpu", "cpu/cpu", "cpu/cpu", NO_GPU),
    "simpledrm-card0": ("dgpu/cuda", "dgpu/cuda", "dgpu/cuda+", "dgpu/cuda+", EXPERTS),
}  # fmt: skip
TRIED = ("4B", "8B", "gpt-oss-20b", "30B-A3B")


def placed(machine, model, overrides=NO_OVERRIDES, history=None, **changes):
    book = Ledger(lambda: machine)
    settings = LoadSettings(path="m.gguf", n_ctx=8192, n_parallel=1, **changes)
    shape = MODELS[model] if isinstance(model, str) else model
    return place(shape, settings, overrides, machine, book, history or PlacementHistory(None))


def decision(machine, model):
    found = placed(machine, model)
    kind = machine.device(found.device).kind
    return f"{kind}/{found.backend}" + ("+" if found.settings.cpu_expert_layers else "")


def test_all_recordings_are_judged():
    assert list(RECORDED) == names()


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_machines_choose_as_specialists_do(name):
    machine = opened(name)
    *wanted, source = RECORDED[name]
    assert [decision(machine, model) for model in TRIED] == list(wanted), source


# Machines as sold, composed of parts: the placement of each model of TRIED (| either), and why. Written before the
# code was run. NVIDIA's ids are made up: its chips are found by name.
_IRIS, _ARC, _REMBRANDT = "8086:46a6", "8086:7d55", "1002:1681"
_RTX_3060 = ("NVIDIA GeForce RTX 3060", 12, "10de:0", "sm_86")
_V, _I, _C = "dgpu/vulkan", "igpu/vulkan", "cpu/cpu"
ASSEMBLED = {
    "RTX 4050 and Iris Xe, 16 GB": (
        ("13th Gen Intel(R) Core(TM) i7-13700H", 6, 16, 76.8, ("Intel Iris Xe", 8, "8086:a7a0", "xe-lp"),
         ("NVIDIA GeForce RTX 4050 Laptop GPU", 6, "10de:0", "sm_89")),
        (_V, _V, _V + "+", f"{_V}+|{_C}*"), EXPERTS),
    "RTX 3050 of 4 GB and Vega": (
        ("AMD Ryzen 5 5600H with Radeon Graphics", 6, 16, 51.2, ("AMD Radeon Vega", 7, "1002:1638", "gfx90c"),
         ("NVIDIA GeForce RTX 3050 Laptop GPU", 4, "10de:0", "sm_86")),
        (_V, _V, _V + "+", f"{_C}*|{_V}+"), EXPERTS),
    "RTX 4090 Laptop and two units": (
        ("AMD Ryzen 9 7945HX with Radeon Graphics", 16, 32, 83.2, ("AMD Radeon 610M", 15, "1002:164e", "gfx1036"),
         ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, "10de:0", "sm_89")),
        (_V, _V, _V, _V + "+"), CARD),
    "RX 7600S and 780M": (
        ("AMD Ryzen 9 7940HS w/ Radeon 780M Graphics", 8, 32, 89.6, ("AMD Radeon 780M", 15, "1002:15bf", "gfx1103"),
         ("AMD Radeon RX 7600S", 8, "1002:7480", "gfx1102")),
        (_V, _V, f"{_V}+|{_I}", f"{_V}+|{_I}+"), "either for a mixture that the card does not hold"),
    "Arc A370M of 4 GB": (
        ("12th Gen Intel(R) Core(TM) i7-12700H", 6, 16, 76.8, ("Intel Iris Xe", 8, _IRIS, "xe-lp"),
         ("Intel Arc A370M", 4, "8086:5693", "xe-hpg")),
        (f"{_V}|{_C}", f"{_C}|{_V}", f"{_C}*|{_V}+", f"{_C}*|{_V}+"), "hardly faster than its processor"),
    "two RTX 3060": (
        ("AMD Ryzen 7 5700X 8-Core Processor", 8, 64, 51.2, *[_RTX_3060] * 2),
        (_V, _V, _V, _V), "llama.cpp: layers over both, no experts aside"),
    "GTX 1050 Ti beside an RTX 3090": (
        ("Intel(R) Core(TM) i7-9700K", 8, 32, 41.6, ("NVIDIA GeForce GTX 1050 Ti", 4, "10de:0", "sm_61"),
         ("NVIDIA GeForce RTX 3090", 24, "10de:0", "sm_86")),
        ("dgpu/vulkan@2",) * 4, "the small one would slow it"),
    "RX 7900 XTX beside an RTX 4090": (
        ("AMD Ryzen 9 7950X 16-Core", 16, 64, 83.2, ("AMD Radeon RX 7900 XTX", 24, "1002:744c", "gfx1100"),
         ("NVIDIA GeForce RTX 4090", 24, "10de:0", "sm_89")),
        ("dgpu/vulkan@2",) * 4, "more of both"),
    "RX 7600 XT over Thunderbolt": (
        ("Intel(R) Core(TM) Ultra 7 155H", 6, 32, 89.6, ("Intel Arc Graphics", 31, _ARC, "xe-lpg"),
         ("AMD Radeon RX 7600 XT", 16, "1002:7480", "gfx1102", 2.7)),
        (_V, _V, _V, _V + "+"), CARD),
    "Steam Deck": (
        ("AMD Custom APU 0405", 4, 15, 88, ("AMD Radeon Graphics", 9, "1002:163f", "gfx1033")),
        (_I, _I, f"{_C}*|{_I}+", _C + "*"), "four slow cores; its owners use Vulkan"),
    "780M, 16 GB": (
        ("AMD Ryzen 7 7840U w/ Radeon 780M Graphics", 8, 15, 89.6, ("AMD Radeon 780M", 8, "1002:15bf", "gfx1103")),
        (_I, _I, f"{_C}*|{_I}+", _C + "*"), "normiebench#8, #10"),
    "680M": (
        ("AMD Ryzen 7 6800H with Radeon Graphics", 8, 32, 76.8, ("AMD Radeon 680M", 16, _REMBRANDT, "gfx1035")),
        (_I, _I, _I, f"{_I}+|{_I}"), "herlangga72: prompts 3.3, answers 1.4 times the processor's"),
    "Arc 140V, 32 GB": (
        ("Intel(R) Core(TM) Ultra 7 258V", 4, 32, 136.5, ("Intel Arc Graphics", 31, "8086:64a0", "xe2-lpg")),
        (_I, _I, _I, _I), XE2),
    "Meteor Lake without a card": (
        ("Intel(R) Core(TM) Ultra 5 125H", 4, 32, 89.6, ("Intel Arc Graphics", 31, _ARC, "xe-lpg")),
        (_I, _I, f"{_I}|{_C}", f"{_I}|{_C}"), XE1),
    "i5-8250U": (
        ("Intel(R) Core(TM) i5-8250U CPU @ 1.60GHz", 4, 16, 38.4, ("Intel UHD Graphics 620", 8, "8086:5917", None)),
        (_C, _C, f"{_C}*|{_C}", _C + "*"), SMALL),
    "840M": (
        ("AMD Ryzen AI 5 340 w/ Radeon 840M", 6, 15, 89.6, ("AMD Radeon 840M", 8, "1002:1114", "gfx1152")),
        (_I, _I, f"{_C}*|{_I}+", _C + "*"), POINT),
    "8040S": (
        ("AMD RYZEN AI MAX 380 w/ Radeon 8040S", 6, 63, 256, ("AMD Radeon 8040S", 48, "1002:1586", "gfx1151")),
        (_I, _I, _I, _I), HALO),
    "RTX Spark": (
        ("Arm core 0xd87", 10, 54, 300, ("NVIDIA RTX Spark N1X", 45, "10de:2e03", "sm_121")),
        (_I, _I, _I, _I), "NVIDIA: its GPU shares the memory"),
    "Arc A770": (
        ("12th Gen Intel(R) Core(TM) i7-12700K", 8, 32, 76.8, ("Intel Arc A770", 16, "8086:56a0", "xe-hpg")),
        (_V, _V, _V, _V + "+"), "9 TFLOPS against 1.2"),
    "Arc B580": (
        ("AMD Ryzen 5 7600 6-Core Processor", 6, 32, 83.2, ("Intel Arc B580", 12, "8086:e20b", "xe2-hpg")),
        (_V, _V, _V + "+", _V + "+"), EXPERTS),
    "RX 580": (
        ("Intel(R) Core(TM) i5-6600 CPU @ 3.30GHz", 4, 16, 34.1, ("AMD Radeon RX 580", 8, "1002:67df", None)),
        (_V, _V, _V + "+", f"{_V}+|{_C}*"), "224 GB/s against 25"),
    "MI50": (
        ("AMD EPYC 7302 16-Core Processor", 16, 256, 204, ("AMD Instinct MI50", 32, "1002:66a1", "gfx906")),
        (_V, _V, _V, _V), "1 TB/s"),
}  # fmt: skip


@pytest.mark.parametrize("name", ASSEMBLED)
def test_other_machines_choose_as_specialists_do(name):
    parts, wanted, source = ASSEMBLED[name]
    machine = assembled(*parts)
    for model, expected_choice in zip(TRIED, wanted, strict=True):
        found = placed(machine, model)
        streamed = "*" if found.streaming is not None else ""
        choice = decision(machine, model) + streamed
        if "@" in expected_choice:
            choice += f"@{int(found.device[5:7])}"
        assert choice in expected_choice.split("|"), (model, source)


# Models that are too large for most machines: machine, model, placement (* streamed, - it does not fit), and
# source.
LARGE = [
    ("sh-framework-desktop-linux", "gpt-oss-120b", "igpu/vulkan", "kyuz0: 56.6 tokens/s"),
    ("sh-framework-desktop-linux", "70B", "igpu/vulkan", "lhl: all layers, 5 tokens/s"),
    ("sh-zbook-ultra-64", "70B", "igpu/vulkan", "the same"),
    ("sh-zbook-ultra-64", "gpt-oss-120b", "cpu/cpu*", "63 GB do not fit 64: a smaller file"),
    ("sp-hx370-pci", "gpt-oss-120b", "cpu/cpu*", "the same"),
    ("lnl-256v", "gpt-oss-120b", "cpu/cpu*", "the same"),
    ("nv-hybrid-addw4", "gpt-oss-120b", "cpu/cpu*", "the same"),
    ("ptl-nuc16-no-driver", "gpt-oss-120b", "cpu/cpu*", "the same"),
    ("x2-elite-windows", "gpt-oss-120b", "cpu/cpu-", "the same; experts are streamed on Linux only"),
    ("m4-max", "70B", "igpu/metal", METAL),
]


@pytest.mark.parametrize(("name", "model", "wanted", "source"), LARGE)
def test_large_models_run_where_they_fit(name, model, wanted, source):
    machine = opened(name)
    found = placed(machine, model)
    mark = "-" if not found.fits else "*" if found.streaming is not None else ""
    assert decision(machine, model) + mark == wanted, source


def test_what_is_promised_on_strix_halo_is_what_owners_report():
    """Source: kyuz0's toolboxes, May 2026; 30B-A3B on two boxes 82 to 97 tokens/s."""
    halo = opened("sh-framework-desktop-linux")
    for model, least, most in (
        ("gpt-oss-20b", 66, 88),
        ("gpt-oss-120b", 47, 60),
        ("30B-A3B", 75, 97),
        ("8B", 40, 50),
    ):
        assert least < placed(halo, model).decode_tok_s < most, model


# Laptops and desktops with a card of 8 GB and an integrated GPU. Source: EXPERTS, CARD.
HYBRID = {
    ("nv-hybrid-addw4", "NVIDIA GeForce RTX 4060 Laptop GPU"): "Intel UHD, 32 units",
    ("nv-hybrid-addw4", "NVIDIA GeForce RTX 4070 Laptop GPU"): "the same",
    ("nv-hybrid-addw4", "NVIDIA GeForce RTX 5060 Laptop GPU"): "the same",
    ("mtl-zbook-power-g11", "NVIDIA GeForce RTX 4060 Laptop GPU"): "Arc with 8 Xe cores, without matrix units",
}


@pytest.mark.slow
@pytest.mark.parametrize("backends", ["own", "vulkan"])
@pytest.mark.parametrize(("name", "card"), HYBRID)
def test_a_card_of_8_gb_is_not_left_for_an_integrated_gpu(name, card, backends):
    machine = with_ram(with_card(opened(name, own=backends == "own"), card, 8), 32)
    for model in TRIED:
        found = placed(machine, model)
        assert machine.device(found.device).kind == "dgpu", model
        assert found.backend == ("cuda" if backends == "own" else "vulkan")
        assert found.settings.n_gpu_layers == len(MODELS[model].layers) + 1
        fits_whole = model in {"4B", "8B"}
        assert (found.settings.cpu_expert_layers == 0) == fits_whole
        assert found.settings.n_ubatch == 2048 or fits_whole
        aside = [sentence(a.reason) for a in found.alternatives if machine.device(a.device).kind == "igpu"]
        assert fits_whole or any("is not preferred to a dedicated GPU" in reason for reason in aside)


def with_small_gpu(machine, pci_id, name, arch):
    """The machine, its GPUs replaced by an integrated GPU with Vulkan."""
    ram = machine.memory.total_bytes
    memory = Memory(physical_bytes=ram, shared_limit_bytes=ram // 2, available_bytes=ram // 2, unified=True)
    runtime = Runtime("vulkan", "Vulkan0", 0, ram // 2, ram // 2, "usable", description=name)
    vendor = {"1002": "AMD", "8086": "Intel"}[pci_id[:4]]
    gpu = Device("0000:00:02.0", "igpu", vendor, name, "usable", memory, pci_id=pci_id, arch=arch)
    devices = (machine.devices[0], replace(gpu, runtimes=(runtime,)))
    return with_chips(replace(machine, devices=devices))


@pytest.mark.parametrize("model", TRIED)
@pytest.mark.parametrize(
    ("name", "pci_id", "arch", "chip"),
    [
        ("simpledrm-card0", "1002:164e", "gfx1036", "gfx1036"),  # a 7950X and its two compute units
        ("nv-hybrid-addw4", "8086:a788", "xe-lp", "uhd-32"),
        ("arl-275hx-npu-present-unusable", "8086:7d67", "xe-lpg", "xe-lpg-64"),
        ("nv-hybrid-addw4", "8086:3e9b", None, "gen9"),
        ("nv-hybrid-addw4", "8086:46d1", "xe-lp", "uhd-n"),
        ("nv-hybrid-addw4", "8086:8a52", None, "gen11-g7"),
    ],
)
def test_a_small_gpu_that_loses_to_its_processor_is_not_taken(name, pci_id, arch, chip, model):
    machine = with_ram(with_small_gpu(opened(name), pci_id, "Graphics", arch), 64)
    assert machine.devices[1].chip == chip
    found = placed(machine, model)
    assert (found.device, found.fits) == ("cpu", True), SMALL
    assert any(a.backend == "vulkan" for a in found.alternatives)


@pytest.mark.parametrize("model", ["4B", "8B", "gpt-oss-20b"])
@pytest.mark.parametrize(
    ("card", "gib", "chip"),
    [
        ("NVIDIA GeForce GT 710", 2, "gt710"),
        ("NVIDIA GeForce GT 1030", 2, "gt1030"),
        ("a card that nobody listed", 2, None),
    ],
)
def test_a_card_that_is_slower_than_the_processor_is_not_taken(card, gib, chip, model):
    """A desktop of 2022 with a card that only drives its screens; 14 and 48 GB/s against 90."""
    machine = with_ram(with_card(opened("simpledrm-card0", own=False), card, gib), 32)
    dgpu = machine.device("dgpu")
    dgpu = replace(dgpu, arch=None, pci_id=None, memory=replace(dgpu.memory, bandwidth_gbs=None))
    dgpu = replace(dgpu, runtimes=tuple(replace(r, matrix_units=None, int_dot=None) for r in dgpu.runtimes))
    machine = with_chips(replace(machine, devices=(machine.devices[0], dgpu)))
    assert machine.devices[1].chip == chip
    found = placed(machine, model)
    assert (found.device, found.fits) == ("cpu", True)


def test_what_a_card_copies_over_a_slow_link_counts():
    """A card of 32 GB in an external enclosure next to a Strix Halo, and on 16 lanes."""
    halo = opened("sh-framework-desktop-linux")
    card = replace(opened("nv-hybrid-addw4").device("dgpu"), arch="sm_120")

    def chosen(link):
        beside = replace(halo, devices=(*halo.devices, replace(card, evidence=(Evidence("sysfs", LINK, link),))))
        return {
            model: decision(with_card(beside, "NVIDIA GeForce RTX 5090", 32), model)
            for model in ("8B", "gpt-oss-120b")
        }

    assert chosen("2.7") == {"8B": "dgpu/cuda", "gpt-oss-120b": "igpu/vulkan"}
    assert chosen("31.5") == {"8B": "dgpu/cuda", "gpt-oss-120b": "dgpu/cuda+"}


def test_processors_write_as_was_published():
    """By the rule that chooses, not by the fitted one: it also counts unpacking and waiting."""
    runs = json.loads(Path("tests/data/speeds/runs.json").read_text(encoding="utf-8"))
    factors = {}
    for run in (r for r in runs if r["backend"] == "cpu" and r["note"] != "another backend's processor"):
        memory = Memory(physical_bytes=64 * GIB, bandwidth_gbs=run["bandwidth_gbs"])
        count = run["threads"]
        cpu = Device(
            "cpu", "cpu", "", run["chip"], "usable", memory, cores=CoreCounts(*(count,) * 3, 0, count, count)
        )
        like = MODELS["8B"]
        layers = (like.layers * 2)[: run["layers"]]
        weights = TensorInfo(
            "blk.0.ffn_up.weight",
            (1000, round(run["params_b"] * 1e6)),
            GgmlType.Q4_K,
            0,
            round(run["file_gib"] * GIB),
        )
        shape = replace(like, layers=layers, tensors=(weights,), file_bytes=weights.nbytes)
        rule = Forecast(shape, LoadSettings(path="m", n_ctx=4096, n_threads=count), ((cpu, "cpu", 1.0),), None)
        forecast = 1 / rule.decode_s(64)
        factors[run["chip"]] = max(forecast / run["decode_tok_s"], run["decode_tok_s"] / forecast)
    assert len(factors) == 13
    assert median(factors.values()) < 1.15, factors
    assert max(factors.values()) < 1.5, factors


def test_the_four_rows_that_were_wrong_are_as_their_forecasts():
    """Figures: tokens per second of an 8 B model in Q4_K, prompt and answers, computed by hand from the same
    table; of two units of RDNA2 from an RX 6800 XT (ggml-org/llama.cpp, pull request 12135).
    """
    shape, settings = (
        MODELS["8B"],
        LoadSettings(path="m", n_ctx=8192, n_threads=16, n_gpu_layers=-1, devices=("x",)),
    )

    def speed(machine, device, backend, at=settings, shape=shape):
        found = expected(Forecast(shape, at, ((device, backend, 1.0),), None), PlacementHistory(None), "")
        return found.prefill_tok_s, found.decode_tok_s

    desktop = with_small_gpu(opened("simpledrm-card0"), "1002:164e", "Graphics", "gfx1036")
    plain = LoadSettings(path="m", n_ctx=8192, n_threads=16)
    prompt, answer = speed(desktop, desktop.devices[0], "cpu", plain)
    assert 90 < prompt < 130
    assert 11 < answer < 14.5
    prompt, answer = speed(desktop, desktop.devices[1], "vulkan")
    assert 35 < prompt < 60  # by units and clock of an RX 6800 XT, which reads 1,846: 50
    assert answer < 15
    laptop = with_card(opened("nv-hybrid-addw4"), "NVIDIA GeForce RTX 4060 Laptop GPU", 8)
    prompt, answer = speed(laptop, laptop.device("dgpu"), "cuda")
    assert 1400 < prompt < 2100
    assert 38 < answer < 50
    prompt, answer = speed(laptop, laptop.device("igpu"), "vulkan")
    assert 15 < prompt < 25
    assert 6.5 < answer < 10
    arm = opened("x2-elite-windows")
    for model, most in (("4B", 3.5e3), ("4B Q4_0", 5e3)):
        prompt, _ = speed(arm, arm.device("igpu"), "opencl", shape=MODELS[model])
        assert prompt * 2 * 4.0 < most, "GFLOPS of OpenCL on an Adreno X2-90"


def test_matrix_units_that_the_device_denies_are_not_counted():
    machine = opened("lnl-256v")
    igpu = machine.device("igpu")
    denied = replace(igpu, runtimes=tuple(replace(r, matrix_units=False) for r in igpu.runtimes))
    undotted = replace(denied, runtimes=tuple(replace(r, int_dot=False) for r in denied.runtimes))
    with_units, without, slowest = (rates(d, "vulkan").gflops for d in (igpu, denied, undotted))
    assert with_units == pytest.approx(4 * without, rel=0.02)
    assert slowest < 0.7 * without


def test_prompts_copy_what_lies_in_ram_once_a_piece():
    laptop = with_card(opened("nv-hybrid-addw4"), "NVIDIA GeForce RTX 4060 Laptop GPU", 8)
    card, cpu = laptop.device("dgpu"), laptop.device("cpu")
    shape = MODELS["30B-A3B"]

    def prompt(n_ubatch, **changes):
        at = LoadSettings(
            path="m", n_ctx=8192, n_threads=8, n_gpu_layers=-1, devices=("x",), cpu_expert_layers=40,
            n_ubatch=n_ubatch, **changes,
        )  # fmt: skip
        found = expected(Forecast(shape, at, ((card, "cuda", 1.0),), cpu), PlacementHistory(None), "")
        return found.prefill_tok_s

    experts = sum(t.nbytes for t in shape.tensors if "_exps" in t.name) * 40 / 48
    copied_s = experts / 1e9 / 12
    assert copied_s < 512 / prompt(512) < 1.5 * copied_s, "copying takes most of the time"
    assert prompt(1024) > 1.6 * prompt(512)
    assert prompt(2048, engine_args=EngineArgs(op_offload=False)) < prompt(512), "the processor computes them"


def test_pieces_are_not_larger_where_nothing_lies_in_ram():
    laptop = with_card(opened("nv-hybrid-addw4"), "NVIDIA GeForce RTX 4060 Laptop GPU", 8)
    assert placed(laptop, "8B").settings.n_ubatch == 512
    assert placed(laptop, "30B-A3B", n_batch=256).settings.n_ubatch == 256
    need = placed(laptop, "30B-A3B").need
    assert need.device_bytes(laptop.device("dgpu").id) <= 8 * GIB


def test_fused_attention_is_forced_only_where_the_backend_is_known_to_have_it():
    halo, snapdragon = opened("sh-framework-desktop-linux"), opened("x2-elite-windows")
    assert placed(halo, "8B", PlacementLimits(device="vulkan")).settings.flash_attn == "on"
    odd = replace(MODELS["8B"], heads=24, attention=24 * 168)
    assert placed(halo, odd, PlacementLimits(device="vulkan")).settings.flash_attn == "auto"
    mixed = replace(odd, heads=32, attention=4096, layers=tuple(
        replace(layer, key_values=2048, value_values=2048) if i % 6 == 5 else layer
        for i, layer in enumerate(odd.layers)
    ))  # fmt: skip
    assert placed(halo, mixed, PlacementLimits(device="vulkan")).settings.flash_attn == "auto"
    assert placed(snapdragon, "8B", PlacementLimits(device="opencl")).settings.flash_attn == "auto"
    assert placed(halo, "8B", PlacementLimits(device="vulkan"), flash_attn="off").settings.flash_attn == "off"
    assert placed(snapdragon, "8B", PlacementLimits(device="opencl", type_k="q8_0")).settings.flash_attn == "on"


def test_sycl_stays_behind_vulkan_until_it_was_measured():
    machine = opened("lnl-256v")
    found = placed(machine, "8B")
    assert found.backend == "vulkan"
    reasons = {a.backend: sentence(a.reason) for a in found.alternatives if a.backend in {"sycl", "cpu"}}
    assert reasons["sycl"] == "sycl is known to be slower than vulkan on such GPUs"
    history = PlacementHistory(None)
    history.record_speed(machine.device("igpu").id, "sycl", 10**9, 120)
    assert placed(machine, "8B", history=history).backend == "sycl"
    assert placed(opened("lnl-256v", without=("vulkan",)), "8B").backend == "sycl"


def with_cuda(machine):
    """The machine with CUDA in addition to Vulkan on each GPU of NVIDIA."""
    devices = []
    for device in machine.devices:
        vulkan = device.runtimes if device.vendor == "NVIDIA" else ()
        cuda = [replace(r, backend="cuda", device_name=r.device_name.replace("Vulkan", "CUDA")) for r in vulkan]
        devices.append(replace(device, runtimes=(*cuda, *device.runtimes)))
    return with_chips(replace(machine, devices=tuple(devices)))


@pytest.mark.parametrize(
    ("name", "gib", "pci", "target"),
    [
        ("NVIDIA GB10", 119, "10de:2e12", "sm_121"),
        ("NVIDIA GeForce RTX 2070 with Max-Q Design", 8, "10de:0", "sm_75"),
        ("NVIDIA GeForce RTX 4070", 12, "10de:0", "sm_89"),
        ("Tesla P40", 24, "10de:0", "sm_61"),
    ],
)
def test_vulkan_stays_behind_cuda_until_it_was_measured(name, gib, pci, target):
    machine = with_cuda(assembled("Intel(R) Core(TM) i7-14700K", 8, 128, 273, (name, gib, pci, target)))
    assert {placed(machine, model).backend for model in TRIED} == {"cuda"}
    history = PlacementHistory(None)
    history.record_speed(machine.devices[1].id, "vulkan", 10**9, 1_000)
    assert placed(machine, "8B", history=history).backend == "vulkan"


def test_vulkan_is_used_for_two_makers_cards_together():
    cards = (
        ("AMD Radeon RX 7900 XTX", 24, "1002:744c", "gfx1100"),
        ("NVIDIA GeForce RTX 4090", 24, "10de:0", "sm_89"),
    )
    machine = with_cuda(assembled("AMD Ryzen 9 7950X 16-Core", 16, 64, 83.2, *cards))
    assert placed(machine, "8B").backend == "cuda"
    both = placed(machine, "70B")
    assert (both.backend, both.settings.n_gpu_layers) == ("vulkan", len(MODELS["70B"].layers) + 1)


def test_openvino_is_judged_by_device_and_type():
    igpu = opened("lnl-256v").device("igpu")
    npu = opened("lnl-256v").device("npu")
    table = {(r.kind, r.match): r for r in chip_speeds().openvino}
    assert table["npu", "F16|BF16|F32"].reads > 20 * table["npu", ".*"].reads
    assert table["igpu", ".*"].gain > 1
    shape = MODELS["4B"]
    plain = replace(
        shape, tensors=tuple(replace(t, ggml_type=GgmlType.F16, nbytes=2 * t.num_values) for t in shape.tensors)
    )

    def decode(device, shape):
        at = LoadSettings(path="m", n_ctx=2048, n_gpu_layers=-1, devices=("openvino:x",))
        rule = Forecast(shape, at, ((device, "openvino", 1.0),), None)
        return expected(rule, PlacementHistory(None), "").decode_tok_s

    assert decode(npu, plain) > 4 * decode(npu, shape), "an NPU rounds k-quants again, a token takes half a second"
    assert decode(igpu, shape) > 30


def test_a_worker_reads_what_it_says_and_openvino_counts_matrix_units_without_vulkan():
    machine = opened("lnl-256v")
    igpu = machine.device("igpu")
    alone = replace(igpu, runtimes=(Runtime("openvino", "openvino:GPU", 0, 0, 0, "usable"),))
    assert openvino_rates(alone, "Q4_K", None) == openvino_rates(igpu, "Q4_K", None)
    far = Device("remote:desk/CUDA0", "remote", "", "desk", "usable", Memory(bandwidth_gbs=700.0))
    assert effective_gbs(far, "rpc") == 700.0


def test_tables_that_are_looked_up_cost_one_row():
    """Gemma 3n and 4 E have an embedding for each layer: most of their file, of which a token reads one row."""
    shape = MODELS["4B"]
    table = TensorInfo(
        "per_layer_token_embd.weight", (8960, 262_144), GgmlType.Q5_K, 0, 8960 * 262_144 // 256 * 176
    )
    with_table = replace(shape, tensors=(*shape.tensors, table), file_bytes=shape.file_bytes + table.nbytes)
    assert bytes_per_token(with_table, 1.0) == bytes_per_token(shape, 1.0)
    assert main_type(with_table) == "Q4_K"
    machine = with_card(opened("nv-hybrid-addw4"), "NVIDIA GeForce RTX 4060 Laptop GPU", 8)
    usual, larger = placed(machine, shape), placed(machine, with_table)
    assert larger.decode_tok_s == pytest.approx(usual.decode_tok_s, rel=0.01)


def test_every_family_has_constants_for_its_makers_backends():
    from devices.chips import chips

    told = {(row.family, row.backend) for row in chip_speeds().gpus if not row.chip}
    own = {"AMD": "rocm", "NVIDIA": "cuda", "Apple": "metal", "Qualcomm": "opencl", "Intel": "sycl"}
    for chip in chips().gpus:
        assert (chip.family, own[chip.vendor]) in told
        assert chip.vendor == "Apple" or (chip.family, "vulkan") in told
        assert chip.family == "adreno" or peak_tflops(chip, matrix=False)
