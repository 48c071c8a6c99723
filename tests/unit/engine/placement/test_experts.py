"""A mixture of 120 billion parameters on recorded machines: the plan, its reasons, and its expected speed."""

import copy
from functools import cache

import msgspec
import pytest
from msgspec.structs import replace

from devices.memory_ledger import Ledger
from devices.recording import RecordedHost
from devices.report import recorded_report
from engine.job_kinds.autotune.space import changed, dimensions, valid
from engine.message_catalog import sentences
from engine.placement.estimate import layer_bytes, ledger_amounts, need_at, owners, shared_out
from engine.placement.history import PlacementHistory
from engine.placement.measurements import knobs_of
from engine.placement.shape import Layer, ModelShape
from engine.placement.steps import place
from engine.placement.types import NO_OVERRIDES, PlacementLimits
from engine.runner.engine_args import EngineArgs
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo
from quantize.ggml_types import BLOCK_SIZES, GgmlType
from tests.support.machines.machines import machines, reports

GIB = 1 << 30
LAYERS, EMBEDDING, EXPERTS, VOCABULARY = 36, 2880, 128, 201_088
RECORDINGS = machines()
RTX = "0000:01:00.0"


@cache
def mixture() -> ModelShape:
    """gpt-oss-120b as ggml-org publishes it: MXFP4 experts, Q8_0 elsewhere, every other layer with a window."""
    found = []

    def tensor(name, kind, *shape):
        block, width = BLOCK_SIZES[kind]
        count = 1
        for n in shape:
            count *= n
        found.append(TensorInfo(name, shape, kind, 0, count // block * width))

    for layer in range(LAYERS):
        for name, rows in (("attn_q", 4096), ("attn_k", 512), ("attn_v", 512)):
            tensor(f"blk.{layer}.{name}.weight", GgmlType.Q8_0, EMBEDDING, rows)
        tensor(f"blk.{layer}.attn_output.weight", GgmlType.Q8_0, 4096, EMBEDDING)
        tensor(f"blk.{layer}.ffn_gate_inp.weight", GgmlType.F32, EMBEDDING, EXPERTS)
        for name in ("gate", "up", "down"):
            tensor(f"blk.{layer}.ffn_{name}_exps.weight", GgmlType.MXFP4, EMBEDDING, EMBEDDING, EXPERTS)
    tensor("token_embd.weight", GgmlType.Q8_0, EMBEDDING, VOCABULARY)
    tensor("output.weight", GgmlType.Q8_0, EMBEDDING, VOCABULARY)
    layers = tuple(Layer(key_values=512, value_values=512, sliding=i % 2 == 0) for i in range(LAYERS))
    return ModelShape(
        architecture="gpt-oss", layers=layers, embedding=EMBEDDING, heads=64, attention=4096, feed_forward=2880,
        vocabulary=VOCABULARY, context_train=131_072, sliding_window=128, experts=EXPERTS, experts_used=4,
        file_bytes=sum(t.nbytes for t in found), tensors=tuple(found),
    )  # fmt: skip


def machine(name):
    return reports()[name]


def placed(found, overrides=NO_OVERRIDES, memory=None, **changes):
    settings = LoadSettings(path="gpt-oss-120b.gguf", **{"n_ctx": 8192, "n_parallel": 1, **changes})
    book = Ledger(lambda: found)
    return place(mixture(), settings, overrides, found, book, memory or PlacementHistory(None)), book


def with_cards(*free_gib):
    """The recorded desktop with an NVIDIA GPU, changed to `cards` of this memory and 128 GiB of RAM."""
    recording = copy.deepcopy(RECORDINGS["nv-hybrid-addw4"])
    recording["backends"] = [
        {
            "backend": "cuda",
            "library": "libggml-cuda.so",
            "state": "usable",
            "devices": [
                {
                    "name": f"CUDA{i}", "description": f"NVIDIA card {i}", "kind": "gpu",
                    "device_id": RTX if i == 0 else f"0000:{i + 1:02}:00.0",
                    "total_bytes": int(gib * GIB) + GIB, "free_bytes": int(gib * GIB),
                }
                for i, gib in enumerate(free_gib)
            ],
        }
    ]  # fmt: skip
    found = recorded_report(RecordedHost(recording))
    memory = replace(found.memory, total_bytes=128 * GIB, available_bytes=120 * GIB)
    return replace(found, memory=memory)


def test_the_shape_is_the_models():
    values = sum(t.num_values for t in mixture().tensors)
    assert values == pytest.approx(116.8e9, rel=0.01)
    assert mixture().file_bytes == pytest.approx(63.4e9, rel=0.03)


@pytest.mark.parametrize("name", ["sh-linux-amdvlk-vs-rocm", "sh-framework-desktop-linux"])
def test_a_strix_halo_takes_all_of_it_experts_too(name):
    found = machine(name)
    plan, book = placed(found)
    assert found.device(plan.device).kind == "igpu"
    assert plan.fits
    book.reserve("big", ledger_amounts(plan.need))
    at = plan.settings
    assert (at.n_gpu_layers, at.cpu_expert_layers, at.use_mmap, at.flash_attn) == (LAYERS + 1, 0, False, "on")
    assert at.n_ubatch == (1024 if plan.backend == "vulkan" else 2048)
    said = " ".join(sentences(plan.reasons))
    for reason in ("all layers fit on AMD Radeon 8060S", "its experts run on the GPU too", "read, not mapped"):
        assert reason in said


@pytest.mark.parametrize(
    ("name", "backend", "depth", "told"),
    [
        ("sh-linux-amdvlk-vs-rocm", "vulkan", 0, 56.6),
        ("sh-linux-amdvlk-vs-rocm", "vulkan", 65_536, 35.0),
        ("sh-linux-amdvlk-vs-rocm", "rocm", 0, 51.5),
        ("sh-framework-desktop-linux", "rocm", 65_536, 28.2),
    ],
)
def test_the_speed_is_what_others_measured(name, backend, depth, told):
    """gpt-oss-120b on a Strix Halo, empty and after 64k tokens. Source: kyuz0's benchmark logs, tokens/s."""
    memory = PlacementHistory(None)
    memory.record_use("", 1000, depth, 1)
    plan, _ = placed(machine(name), PlacementLimits(device=backend), memory, n_ctx=98_304)
    assert plan.decode_tok_s == pytest.approx(told, rel=0.2)


def test_what_no_memory_holds_is_said():
    plan, _ = placed(machine("sh-windows-rocm714"))  # 32 GiB
    assert not plan.fits
    assert sentences(plan.reasons)[0] == "it does not fit the memory that is free now"


def test_what_no_memory_holds_is_streamed_on_linux():
    plan, _ = placed(machine("sh-zbook-ultra-64"))  # 62 GiB
    assert plan.fits
    assert plan.streaming.cached_bytes < plan.streaming.expert_bytes


def limited(num_bytes):
    """The Strix Halo with a driver that grants the GPU less."""
    found = machine("sh-linux-amdvlk-vs-rocm")
    return replace(
        found,
        devices=tuple(
            replace(d, memory=replace(d.memory, shared_limit_bytes=num_bytes, dedicated_bytes=None))
            if d.kind == "igpu"
            else d
            for d in found.devices
        ),
    )


def test_a_driver_that_grants_less_leaves_a_few_experts_to_the_processor():
    plan, book = placed(limited(56 * GIB), PlacementLimits(device="vulkan"))
    at, whole = plan.settings, placed(limited(80 * GIB), PlacementLimits(device="vulkan"))[0]
    assert plan.fits
    assert at.n_gpu_layers == LAYERS + 1
    assert 0 < at.cpu_expert_layers <= 6
    book.reserve("big", ledger_amounts(plan.need))
    tighter = placed(limited(40 * GIB), PlacementLimits(device="vulkan"))[0]
    assert tighter.settings.cpu_expert_layers > at.cpu_expert_layers
    assert whole.decode_tok_s > plan.decode_tok_s > tighter.decode_tok_s
    said = " ".join(sentences(plan.reasons))
    assert f"without the experts of {at.cpu_expert_layers} of {LAYERS}" in said
    assert "4 of 128" in said


@pytest.mark.parametrize("gib", [5.7, 11, 23])
def test_a_card_takes_everything_but_experts_that_do_not_fit(gib):
    found = with_cards(gib)
    plan, book = placed(found)
    at = plan.settings
    assert (plan.backend, at.n_gpu_layers) == ("cuda", LAYERS + 1)
    assert 0 < at.cpu_expert_layers <= LAYERS
    assert plan.fits
    book.reserve("big", ledger_amounts(plan.need))
    fewer = msgspec.structs.replace(at, engine_args=EngineArgs(n_cpu_moe=at.cpu_expert_layers - 1))
    on_card = sum(size for size in layer_bytes(mixture(), fewer, plan.need.kv_layer_bytes))
    assert on_card + plan.need.part_bytes("compute") > found.device(plan.device).memory.available_bytes - GIB
    layers = next(a for a in placed(found, PlacementLimits(device="cuda", n_gpu_layers=at.n_gpu_layers // 3))[:1])
    assert layers.settings.cpu_expert_layers == 0, "a pinned number of layers is not second-guessed"


def test_several_cards_share_what_one_cannot_hold():
    found = with_cards(5.7, 39, 39)
    plan, book = placed(found)
    at = plan.settings
    assert plan.fits
    assert len(at.devices) == 3
    assert sum(at.tensor_split) == LAYERS + 1
    book.reserve("big", ledger_amounts(plan.need))
    for device in plan.need.devices:
        assert plan.need.device_bytes(device) <= book.available(device, found, exclude="big")
    assert "split by free memory" in " ".join(sentences(plan.reasons))
    alone, _ = placed(found, PlacementLimits(device="CUDA1"))
    assert alone.settings.devices == ("CUDA1",), "a pin that names one card means that one alone"
    assert alone.settings.cpu_expert_layers > 0


def test_cards_that_hold_a_model_alone_do_not_share_it():
    plan, _ = placed(with_cards(79, 79))
    assert len(plan.settings.devices) == 1
    assert plan.settings.tensor_split == ()


def test_layers_without_their_experts_are_small_and_shares_know_it():
    """A share of layers is not a share of bytes: the first 20 keep their experts on the CPU."""
    found = with_cards(5.7, 12)
    plan, _ = placed(found)
    at = plan.settings
    assert at.cpu_expert_layers > 10
    first, second = at.tensor_split
    assert first > second + 5
    assert owners(mixture(), at, at.tensor_split).count(0) == first
    cards = [d for d in found.devices if d.kind == "dgpu"]
    naive = msgspec.structs.replace(at, tensor_split=tuple(d.memory.available_bytes for d in cards[::-1]))
    plain = need_at(mixture(), naive, frozenset(), plan.device, None)
    by_memory = shared_out(plain, mixture(), naive, found, plan.device)
    assert any(by_memory.device_bytes(d.id) > d.memory.available_bytes for d in cards)
    assert all(plan.need.device_bytes(d.id) <= d.memory.available_bytes for d in cards)


def test_autotune_tries_experts_where_layers_are_on_a_gpu():
    found = with_cards(11)
    base = knobs_of(placed(found)[0].settings)
    dims = {d.name: d for d in dimensions(base, found, 4096, LAYERS, experts=True)}
    counts = [level["cpu_expert_layers"] for level in dims["experts on the processor"].levels]
    assert base.cpu_expert_layers in counts
    assert {0, LAYERS} <= set(counts)
    assert "experts on the processor" not in {d.name for d in dimensions(base, found, 4096, LAYERS)}
    alone = changed(base, {"devices": (), "n_gpu_layers": 0})
    assert alone.cpu_expert_layers == 0
    assert not valid(changed(alone, {"cpu_expert_layers": 9}))
