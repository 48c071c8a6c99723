"""Placement of a model on recorded machines, with reasons."""

import json
from bisect import bisect_left
from types import SimpleNamespace

import msgspec
import pytest
from gguf import GGMLQuantizationType
from msgspec.structs import replace
from msgspec.structs import replace as replaced

from devices.memory_ledger import Ledger
from devices.types import CoreCounts, Runtime
from engine.message_catalog import sentence, sentences
from engine.placement import candidates, choose
from engine.placement.cpu_choices import heads_of
from engine.placement.estimate import kv_layer_bytes
from engine.placement.fallbacks import next_fallback
from engine.placement.history import (
    SAVE_EVERY,
    AttentionSpeed,
    AttentionTimes,
    Heads,
    ModelUsage,
    PlacementHistory,
    attention_key,
)
from engine.placement.load_settings import ROOMY_BYTES
from engine.placement.measurements import Speed
from engine.placement.placer import read_shape
from engine.placement.results import machine_key
from engine.placement.speed import bytes_per_token
from engine.placement.steps import place
from engine.placement.types import NO_OVERRIDES, PlacementLimits
from engine.runner.protocol import LoadSettings
from tests.support.machines.machines import reports
from tests.support.models.mtp_model import write_mtp_model
from tests.support.models.shapes import scaled, write_hollow

GIB = 1 << 30
MACHINES = reports()
HALO = MACHINES["sh-linux-amdvlk-vs-rocm"]
IGPU = "0000:c3:00.0"
SIZES = range(GIB // 8, HALO.memory.total_bytes, 16 << 20)  # of memory that may be used


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    # With fewer weights, no GPU is worth its kernel launches.
    wide = scaled("llama", vocab=1000, ffn=16384, qtype=GGMLQuantizationType.Q8_0)
    return str(write_hollow(tmp_path_factory.mktemp("dispatch") / "m.gguf", wide))


@pytest.fixture(scope="module")
def shape(path):
    return read_shape(path)


@pytest.fixture
def without_our_kernels(monkeypatch):
    """As where they are not built: on systems other than Linux and CPUs other than x86."""
    monkeypatch.setattr(candidates, "tiles_library", lambda _folder: None)


def base(path, **changes):
    return LoadSettings(path=path, n_ctx=4096, n_batch=2048, **changes)


def placed(shape, path, machine, overrides=NO_OVERRIDES, memory=None, settings=None):
    book = Ledger(lambda: machine)
    return place(shape, settings or base(path), overrides, machine, book, memory or PlacementHistory(None))


def with_gpu_memory(machine, device_id, num_bytes):
    changed = tuple(
        replace(d, memory=replace(d.memory, shared_limit_bytes=num_bytes, dedicated_bytes=None))
        if d.id == device_id
        else d
        for d in machine.devices
    )
    return replace(machine, devices=changed)


def test_an_integrated_gpu_gets_everything_through_vulkan(shape, path):
    placement = placed(shape, path, HALO)
    assert (placement.device, placement.backend) == (IGPU, "vulkan")
    assert placement.settings.devices == ("Vulkan0",)
    assert placement.settings.n_gpu_layers == 7
    assert placement.settings.n_ubatch == 1024
    assert placement.settings.flash_attn == "on"
    assert placement.settings.use_mmap is False
    assert any("all layers fit" in reason for reason in sentences(placement.reasons))
    losers = {(a.device, a.backend): sentence(a.reason) for a in placement.alternatives}
    assert "slower" in losers[(IGPU, "rocm")]
    assert "slower" in losers[("cpu", "cpu")]


def test_a_pin_beats_everything(shape, path):
    for pin, expected in (
        ("cpu", "cpu"),
        ("rocm", "rocm"),
        ("ROCm0", "rocm"),
        (IGPU, "vulkan"),
        ("igpu", "vulkan"),
    ):
        placement = placed(shape, path, HALO, PlacementLimits(device=pin))
        assert placement.backend == expected
        assert sentences(placement.reasons)[0].startswith("you pinned")


def test_a_pin_that_cannot_be_honoured_is_said(shape, path):
    placement = placed(shape, path, HALO, PlacementLimits(device="cuda"))
    assert "cuda is not usable here" in sentences(placement.reasons)[0]


@pytest.mark.parametrize(
    ("kind", "measured", "gain", "used"),
    [
        ("igpu", False, 1.2, False),
        ("igpu", True, 1.2, True),
        ("dgpu", False, 1.2, True),
        ("dgpu", False, 1.05, False),
    ],
)
def test_a_forecast_of_an_integrated_gpu_must_promise_more(kind, measured, gain, used):
    cpu, gpu = candidate("cpu", "cpu", 10.0), candidate(kind, "vulkan", 10.0 * gain, measured=measured)
    assert (choose._best([cpu, gpu], cpu) is gpu) == used


def candidate(kind, backend, tok_s, *, measured=False, experts=0):
    """A candidate that fits; `experts`: how many layers' experts stay in RAM."""
    device = SimpleNamespace(kind=kind, id=kind)
    speed = Speed(prefill_tok_s=10 * tok_s, decode_tok_s=tok_s, measured=measured)
    settings = SimpleNamespace(n_gpu_layers=99, cpu_expert_layers=experts)
    runtime = SimpleNamespace(matrix_units=True)
    facts = {"device": device, "backend": backend, "speed": speed, "settings": settings, "runtime": runtime}
    return SimpleNamespace(**facts, fits=True, others=())


@pytest.mark.parametrize(("gain", "used"), [(1.02, False), (1.2, True)])
def test_a_card_with_experts_in_ram_must_beat_a_device_that_holds_all(gain, used):
    cpu, whole = candidate("cpu", "cpu", 10.0), candidate("igpu", "vulkan", 80.0)
    card = candidate("dgpu", "vulkan", 80.0 * gain, experts=4)
    assert (choose._best([cpu, whole, card], cpu) is card) == used


def test_a_measurement_on_this_machine_beats_the_prior(shape, path):
    memory = PlacementHistory(None)
    memory.record_speed(IGPU, "rocm", 10**9, 300)
    placement = placed(shape, path, HALO, memory=memory)
    assert placement.backend == "rocm"
    assert placement.basis == "measured"
    assert any("measured on this machine" in reason for reason in sentences(placement.reasons))


def test_layers_are_split_when_not_all_fit(shape, path):
    whole = placed(shape, path, HALO).need.device_bytes(IGPU)
    machine = with_gpu_memory(HALO, IGPU, whole * 3 // 4)
    placement = placed(shape, path, machine, PlacementLimits(device="igpu"))
    assert 0 < placement.settings.n_gpu_layers < 7
    assert placement.fits
    assert placement.need.device_bytes(IGPU) <= whole * 3 // 4
    more = placed(
        shape, path, machine, PlacementLimits(device="igpu", n_gpu_layers=placement.settings.n_gpu_layers + 1)
    )
    assert not more.fits
    for wished, layers in ((0, 0), (-1, 7)):
        asked = placed(shape, path, HALO, PlacementLimits(device="igpu", n_gpu_layers=wished))
        assert asked.settings.n_gpu_layers == layers


def two_at_once():
    """Statistics of a model that mostly generates two responses concurrently."""
    memory = PlacementHistory(None)
    memory.record_use("", 2000, 100.0, 2)
    return memory


def test_layers_on_a_small_gpu_come_before_cells_to_spare(shape, path):
    memory = two_at_once()
    roomy = base(path, kv_cells=8 * 4096, n_parallel=8)
    tight = placed(shape, path, HALO, settings=base(path, n_parallel=8)).need.device_bytes(IGPU)
    spare = placed(shape, path, HALO, memory=memory, settings=roomy)
    assert spare.settings.kv_cells > 4096  # if there is enough memory, there are cells for all
    assert spare.need.device_bytes(IGPU) > tight
    small = placed(shape, path, with_gpu_memory(HALO, IGPU, tight), PlacementLimits(device="igpu"), memory, roomy)
    assert (small.settings.n_gpu_layers, small.settings.kv_cells, small.fits) == (7, 0, True)
    overrides = PlacementLimits(device="igpu", n_gpu_layers=7)
    asked = placed(shape, path, with_gpu_memory(HALO, IGPU, tight), overrides, memory, roomy)
    assert (asked.settings.n_gpu_layers, asked.settings.kv_cells, asked.fits) == (7, 0, True)


def test_a_gpu_without_room_leaves_the_processor(shape, path):
    placement = placed(shape, path, with_gpu_memory(HALO, IGPU, 1 << 20))
    assert placement.device == "cpu"
    assert any(sentence(a.reason) == "not one layer fits there" for a in placement.alternatives)


def test_without_a_gpu_the_reason_says_so(shape, path):
    placement = placed(shape, path, MACHINES["vm-firecracker"])
    assert placement.device == "cpu"
    assert sentences(placement.reasons)[0] == "this machine has no GPU"
    assert placement.settings.n_threads == 2
    unusable = placed(shape, path, MACHINES["sh-linux-driver-failed"])
    assert "refused this GPU" in sentences(unusable.reasons)[0]


def test_npus_are_named_with_their_reason(shape, path):
    placement = placed(shape, path, MACHINES["sh-flow-z13-linux-gtt96"])
    (npu,) = [a for a in placement.alternatives if a.backend == "onnx"]
    assert "ONNX models only" in sentence(npu.reason)


def test_threads_follow_fast_cores_affinity_quota_and_mode(shape, path):
    hybrid = MACHINES["mtl-zbook-power-g11"]
    roomy = replace(hybrid, memory=replace(hybrid.memory, available_bytes=20 * GIB))
    assert placed(shape, path, roomy).settings.n_threads == 6
    assert placed(shape, path, roomy, PlacementLimits(mode="quiet")).settings.n_threads == 3
    assert placed(shape, path, roomy, settings=base(path, n_threads=1)).settings.n_threads == 1
    limited = CoreCounts(16, 22, 6, 10, 4, 2, quota_cores=1.5)
    pinned = replace(roomy, devices=(replace(roomy.devices[0], cores=limited), *roomy.devices[1:]))
    assert placed(shape, path, pinned).settings.n_threads == 1


def test_wishes_reach_the_settings(shape, path):
    overrides = PlacementLimits(n_ctx=1024, n_parallel=2, type_k="q8_0")
    settings = placed(shape, path, HALO, overrides, settings=base(path, kv_cells=16384)).settings
    assert (settings.n_ctx, settings.n_parallel, settings.kv_cells) == (1024, 2, 2048)
    assert (settings.type_k, settings.type_v, settings.flash_attn) == ("q8_0", "q8_0", "on")


@pytest.mark.usefixtures("without_our_kernels")
def test_processors_attend_plainly_where_that_is_faster_and_fits(shape, path):
    settings = placed(shape, path, HALO, PlacementLimits(device="cpu", n_parallel=2)).settings
    assert (settings.flash_attn, settings.n_ubatch) == ("off", 128)
    assert placed(shape, path, HALO).settings.flash_attn == "on"
    assert placed(shape, path, HALO, PlacementLimits(device="cpu", n_parallel=4)).settings.flash_attn == "auto"
    assert (
        placed(shape, path, HALO, PlacementLimits(device="cpu", n_parallel=2, type_k="q8_0")).settings.flash_attn
        == "on"
    )
    kept = placed(
        shape, path, HALO, PlacementLimits(device="cpu", n_parallel=2), settings=base(path, flash_attn="on")
    )
    assert kept.settings.flash_attn == "on"


def test_the_files_own_head_guesses_where_it_fits_and_nothing_else_does(tmp_path):
    file = write_mtp_model(tmp_path / "m.gguf", "random")
    shape = read_shape(file)

    def uses_it(machine=HALO, **changes):
        found = placed(shape, file, machine, PlacementLimits(device="cpu"), settings=base(file, **changes))
        assert found.settings.mtp == any("MTP head" in reason for reason in sentences(found.reasons))
        assert (found.need.part_bytes("draft") > 0) == found.settings.mtp
        return found.settings.mtp

    assert uses_it()
    assert not uses_it(max_draft=0)
    assert not uses_it(embeddings=True)

    def found(available):
        machine = replace(HALO, memory=replace(HALO.memory, available_bytes=available))
        return placed(shape, file, machine, PlacementLimits(device="cpu"), settings=base(file))

    least = SIZES[bisect_left(SIZES, 1, key=lambda n: found(n).fits)]
    near = [found(n) for n in range(least - (16 << 20), least + (64 << 20), 1 << 20)]
    fitting = [placement.settings.mtp for placement in near if placement.fits]
    assert fitting[0] is False  # better without it than not at all
    assert fitting[-1] is True
    fallback = next_fallback(base(file, mtp=True), HALO, ())
    assert fallback is not None
    assert fallback.settings == base(file)


def test_a_processor_that_was_asked_for_is_not_said_to_be_faster_than_the_gpus(shape, path):
    pinned = placed(shape, path, HALO, PlacementLimits(device="cpu"))
    assert not any("expected to be faster than the CPU" in reason for reason in sentences(pinned.reasons))


@pytest.mark.usefixtures("without_our_kernels")
def test_a_model_of_long_chats_attends_plainly_at_its_next_load(shape, path):
    def attention(answers, owner="m"):
        memory = PlacementHistory(None)
        for answer in answers:
            memory.record_use("m", *answer)
        book = Ledger(lambda: HALO)
        overrides = PlacementLimits(device="cpu", n_parallel=8)
        found = place(shape, base(path), overrides, HALO, book, memory, owner=owner)
        said = any("one long text at a time" in reason for reason in sentences(found.reasons))
        assert said == (found.settings.flash_attn == "off")
        return found.settings.flash_attn

    long = [(300, 2000.0, 1)] * 4
    assert attention(long) == "off"
    assert attention(long, owner="another") == "auto"
    assert attention(long[:3]) == "auto"  # too few data
    assert attention([(300, 200.0, 1)] * 9) == "auto"
    assert attention([(300, 2000.0, 4)] * 9) == "auto"
    assert attention([*long * 9, *[(300, 100.0, 6)] * 40]) == "auto"  # habits change


@pytest.mark.usefixtures("without_our_kernels")
def test_what_was_measured_here_beats_the_rule_by_instruction_sets(shape, path):
    def attention(machine, ratios, answers=(), **overrides):
        memory = PlacementHistory(None)
        for answer in answers:
            memory.record_use("m", *answer)
        wished = PlacementLimits(device="cpu", **overrides)
        threads = place(shape, base(path), wished, machine, Ledger(lambda: machine), memory).settings.n_threads
        points = tuple(AttentionTimes(n, 1.0, ratio, 0.001, 0.001 * ratio) for n, ratio in ratios.items())
        heads = Heads(shape.heads, shape.layers[0].key_values * shape.heads // shape.embedding, 64)
        assert heads_of(shape) == heads
        memory.record_attention(attention_key(machine_key(machine), heads, threads), AttentionSpeed(points))
        found = place(shape, base(path), wished, machine, Ledger(lambda: machine), memory, owner="m")
        (told,) = [reason for reason in sentences(found.reasons) if "attention measured here" in reason]
        # but it is not used nevertheless
        pays = found.settings.flash_attn == "auto" and min(ratios.values()) < 0.95
        assert ("which is still used for concurrent requests" in told) == (pays and not answers)
        return found.settings.flash_attn

    arm = next(m for m in MACHINES.values() if m.arch in {"arm64", "aarch64"} and "avx2" not in m.devices[0].isa)
    assert placed(shape, path, HALO, PlacementLimits(device="cpu", n_parallel=1)).settings.flash_attn == "off"
    assert attention(HALO, {512: 1.3}, n_parallel=1) == "auto"
    assert attention(HALO, {512: 0.97}, n_parallel=1) == "auto"  # too little gain for its memory
    assert attention(HALO, {512: 0.9}, n_parallel=1) == "off"
    assert placed(shape, path, arm, PlacementLimits(device="cpu", n_parallel=1)).settings.flash_attn == "auto"
    assert attention(arm, {512: 0.6}, n_parallel=1) == "off"
    for isa, expected in ((("asimddp", "i8mm"), "auto"), (("asimddp", "i8mm", "sve"), "off"), (("sve",), "auto")):
        machine = replace(arm, devices=(replace(arm.devices[0], isa=isa), *arm.devices[1:]))
        assert (
            placed(shape, path, machine, PlacementLimits(device="cpu", n_parallel=1)).settings.flash_attn
            == expected
        )
    # Its usage shows which length counts, and that several requests run concurrently.
    long = [(300, 2000.0, 1)] * 4
    assert attention(HALO, {512: 1.3, 2048: 0.6}, long, n_parallel=1) == "off"
    assert attention(HALO, {512: 0.6, 2048: 1.3}, long, n_parallel=1) == "auto"
    assert attention(HALO, {512: 0.6}, n_parallel=8) == "auto"


def test_a_damaged_measurement_of_attention_is_passed_over(tmp_path):
    file = tmp_path / "dispatch.json"
    sound = [[512, 1.0, 0.5, 0.001, 0.0005]]
    rows = {"a": {"points": []}, "b": {"points": [["x"]]}, "c": 7, "d": {"points": sound}}
    file.write_text(json.dumps({"attention": rows}))
    history = PlacementHistory(file)
    assert [history.attention(key) is not None for key in "abcd"] == [False, False, False, True]


@pytest.mark.usefixtures("without_our_kernels")
def test_large_caches_keep_fused_attention(shape, path):
    def attention(**overrides):
        return placed(
            shape, path, HALO, PlacementLimits(device="cpu", **overrides), settings=base(path, kv_cells=4097)
        ).settings.flash_attn

    assert attention(n_ctx=32768, n_parallel=1) == "off"
    assert attention(n_ctx=16384, n_parallel=2) == "off"
    assert attention(n_ctx=32768, n_parallel=2) == "auto"
    assert attention(n_ctx=65536, n_parallel=1) == "auto"


def test_a_shared_cache_is_roomy_where_that_is_cheap(shape, path):
    per_cell = sum(kv_layer_bytes(shape, replaced(base(path), n_ctx=1024))) // 1024

    memory = PlacementHistory(None)

    def settings(n_ctx, times, **overrides):
        asked = replaced(base(path), n_ctx=n_ctx, kv_cells=times * n_ctx)
        return placed(shape, path, HALO, PlacementLimits(device="cpu", **overrides), memory, asked).settings

    def cells(n_ctx, times):
        return settings(n_ctx, times).kv_cells

    assert cells(1024, 4) == 1024, "one person needs one context"
    assert settings(1024, 4, n_parallel=4).kv_cells == 4096, "asked for"
    before = settings(1024, 4).n_parallel
    memory.record_use("", 2000, 100.0, 2)
    assert cells(1024, 4) == 4096, "two at once were seen"
    assert settings(1024, 4).n_parallel == before
    assert cells(1024, 1 << 16) == ROOMY_BYTES // per_cell // 256 * 256
    whole = ROOMY_BYTES // per_cell // 256 * 512  # a single context is larger
    assert cells(whole, 8) == whole
    memory.record_use("", 20_000, 100.0, 8)
    assert settings(1024, 4).n_parallel == 8
    assert settings(1024, 4, n_parallel=2).n_parallel == 2


def test_a_roomy_cache_gives_way_to_what_fits(shape, path):
    def fits(available, kv_cells):
        machine = replace(HALO, memory=replace(HALO.memory, available_bytes=available))
        return placed(
            shape, path, machine, PlacementLimits(device="cpu"), two_at_once(), base(path, kv_cells=kv_cells)
        ).fits

    least = SIZES[bisect_left(SIZES, 1, key=lambda n: fits(n, 0))]
    assert not fits(least - SIZES.step, 0)
    assert fits(least, 1 << 20)


def test_experts_that_are_not_used_are_not_read(tmp_path):
    shape = read_shape(str(write_hollow(tmp_path / "moe.gguf", scaled("qwen3moe", vocab=1000))))
    experts = sum(t.nbytes for t in shape.tensors if "_exps" in t.name)
    assert bytes_per_token(shape, 4 / 16) == bytes_per_token(shape, 1.0) - experts * 3 // 4


def test_a_placement_travels_as_json(shape, path):
    placement = placed(shape, path, HALO)
    assert msgspec.json.decode(msgspec.json.encode(placement), type=type(placement)) == placement


@pytest.mark.parametrize("name", MACHINES)
def test_every_recorded_machine_gets_a_placement_that_fits_or_says_not(shape, path, name):
    placement = placed(shape, path, MACHINES[name])
    assert placement.reasons
    assert placement.fits or "it does not fit the memory that is free now" in sentences(placement.reasons)


def test_the_ladder_goes_from_backend_to_processor(path):
    settings = base(path, devices=("Vulkan0",), n_gpu_layers=7, n_ubatch=512, type_k="q8_0", type_v="q8_0")
    tried, changes = [settings], []
    while True:
        fallback = next_fallback(tried[-1], HALO, tuple(tried))
        if fallback is None:
            break
        tried.append(fallback.settings)
        changes.append(sentence(fallback.change))
        assert len(tried) < 40
    assert changes[0] == "use rocm instead (ROCm0)"
    assert "read prompts in chunks of 256 tokens" in changes
    assert "run on the CPU" in changes
    final = tried[-1]
    assert (final.devices, final.n_gpu_layers, final.repack, final.use_mmap) == ((), 0, False, False)
    assert len(set(map(repr, tried))) == len(tried)


def test_dispatch_memory_survives_restart_and_damage(tmp_path):
    file = tmp_path / "state" / "dispatch.json"
    memory = PlacementHistory(file)
    memory.record_speed("cpu", "cpu", 10**9, 20)
    memory.record_speed("cpu", "cpu", 10**9, 40)
    memory.record_speed("cpu", "cpu", 0, 40)
    memory.record_speed("cpu", "cpu", 10**9, float("inf"))
    memory.remember("m", {"n_ubatch": 128})
    again = PlacementHistory(file)
    assert again.speed_gbs("cpu", "cpu") == pytest.approx(30)
    assert again.remembered("m") == {"n_ubatch": 128}
    again.remember("m", {})
    assert PlacementHistory(file).remembered("m") == {}
    for damage in (
        b"",
        b"[]",
        b"{",
        b'{"speeds": [], "ladders": 3}',
        b'{"speeds": {"a": "x"}, "ladders": {"m": 1}}',
        b'{"uses": {"m": [1, 2]}}',
        b'{"uses": {"m": [1, NaN, 1]}}',
        b'{"uses": {"m": [1, "x", 1e999]}}',
    ):
        file.write_bytes(damage)
        damaged = PlacementHistory(file)
        assert damaged.speed_gbs("cpu", "cpu") is None
        assert damaged.remembered("m") == {}
        assert damaged.use("m") is None


def test_what_answers_teach_is_kept(tmp_path):
    file = tmp_path / "state" / "dispatch.json"
    memory = PlacementHistory(file)
    memory.record_use("m", 100, 1000.0, 1)
    memory.record_use("m", 300, 2000.0, 3)
    memory.record_use("m", 0, 9000.0, 9)
    assert memory.use("m") == ModelUsage(400, 1750, 2.5)
    assert not file.exists()  # not written after every answer
    memory.flush()
    assert PlacementHistory(file).use("m") == memory.use("m")
    for _ in range(SAVE_EVERY):
        memory.record_use("n", 1000, 10.0, 1)
    assert PlacementHistory(file).use("n") == ModelUsage(16_000, 10, 1)
    for _ in range(60):
        memory.record_use("n", 1000, 900.0, 1)
    assert memory.use("n").depth == pytest.approx(900, rel=0.06)


def test_a_software_renderer_is_never_preferred(shape, path):
    cpu_only = MACHINES["vm-firecracker"]
    cpu = cpu_only.devices[0]
    renderer = replace(
        cpu,
        id="vulkan:vulkan0",
        kind="igpu",
        vendor="software",
        name="llvmpipe",
        state="usable",
        runtimes=(Runtime("vulkan", "Vulkan0", 0, 8 * GIB, 8 * GIB, "usable"),),
    )
    machine = replace(cpu_only, devices=(cpu, renderer))
    assert placed(shape, path, machine).device == "cpu"
    assert placed(shape, path, machine, PlacementLimits(device="vulkan")).settings.devices == ("Vulkan0",)
