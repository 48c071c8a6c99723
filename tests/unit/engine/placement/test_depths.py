"""Forecasts after long texts: published curves that were not used for fitting, and their effect on the choice."""

import json
from itertools import product
from statistics import median

import pytest
from msgspec.structs import replace

from devices.chips import chips, cpu_kind, gpu
from devices.memory_ledger import Ledger
from devices.types import Device, Memory, Runtime
from engine.message_catalog import sentence, sentences
from engine.placement.candidates import PlacementQuery, on_gpus
from engine.placement.chip_speeds import chip_speeds, most_read, peak_tflops, rates, shared_gain, unpack_ns
from engine.placement.choose import choose_candidate, placement_of
from engine.placement.estimate import on_gpu
from engine.placement.history import PlacementHistory, SpeedPoint, seconds_at
from engine.placement.speed import BACKENDS, Forecast, expected, packed_weights, speed_curve
from engine.placement.types import PlacementLimits
from engine.runner.protocol import LoadSettings
from tests.bench import chip_speeds as bench
from tests.bench import depth_speeds
from tests.support.machines.opened_machines import opened
from tests.support.models.published_shapes import MODELS

DEEP = 64_000


def speed(machine, backend, model, depth, n_ubatch=512):
    igpu = machine.device("igpu")
    history = PlacementHistory(None)
    history.record_use("m", 20_000, float(depth), 1)
    at = LoadSettings(path="m", n_ctx=131_072, n_gpu_layers=-1, devices=("x",), n_ubatch=n_ubatch)
    return expected(Forecast(MODELS[model], at, ((igpu, backend, 1.0),), None), history, "m")


@pytest.mark.parametrize("backend", ["vulkan", "rocm"])
def test_answers_and_prompts_are_slower_behind_long_texts(backend):
    """Source: kyuz0's toolboxes on Strix Halo, 2026: 30B-A3B and gpt-oss-20b are 33 to 67 % slower by 64k."""
    halo = opened("sh-framework-desktop-linux")
    for model in ("8B", "30B-A3B", "gpt-oss-20b"):
        at = [speed(halo, backend, model, depth) for depth in (1000, 16_000, DEEP)]
        answers, prompts = [s.decode_tok_s for s in at], [s.prefill_tok_s for s in at]
        assert answers == sorted(answers, reverse=True)
        assert prompts == sorted(prompts, reverse=True)
        assert answers[-1] < 0.75 * answers[0]
        assert prompts[-1] < 0.5 * prompts[0]


def test_types_that_are_computed_row_by_row_take_longer_to_unpack():
    """Measured: CPU time of one thread of a Zen 4 EPYC; Q4_1 takes twice that of Q4_K_M."""
    epyc, unknown = cpu_kind("AMD EPYC"), cpu_kind("no such processor")
    assert unpack_ns(epyc, "Q4_1") == unpack_ns(epyc, "Q5_1") > 1.4 * unpack_ns(epyc, "Q4_K")
    assert unpack_ns(unknown, "Q4_1") == unpack_ns(unknown, "Q4_K") == chip_speeds().cpu.unpack_ns


@pytest.mark.parametrize("phase", list(bench.GOALS))
def test_nine_in_ten_published_runs_are_met_within_a_half_by_a_rule_that_does_not_know_the_chip(phase):
    rows = json.loads(bench.RUNS.read_text(encoding="utf-8"))
    runs = bench.gpu_runs(rows)
    current = [run for run in runs if not run.old(phase) and not run.broken(phase)]
    processors = dict(zip(bench.GOALS, bench.processors(rows), strict=True))[phase]
    errors = [error for error, _ in (*bench.left_out(current, runs, phase), *processors)]
    assert len(errors) > 50
    assert median(errors) < 1.15
    assert sum(error <= bench.WITHIN for error in errors) >= 0.9 * len(errors)


def test_a_gpu_without_matrix_units_reads_prompts_by_integer_dot_products():
    """Source: RX 6800 XT, 8B Q4_0: 1,846 tokens/s with them and 921 without (ggml-org/llama.cpp, PR 12135)."""
    card = gpu("rx6800xt")
    with_dot, without = (peak_tflops(card, matrix=False, has_dot=dot) for dot in (True, False))
    assert with_dot / without == pytest.approx(1846 / 921, rel=0.05)
    row = next(r for r in chip_speeds().gpus if (r.family, r.backend, r.chip) == ("rdna2-card", "vulkan", ""))
    assert row.share * without == pytest.approx(2 * 8.03 * 921 / 1000, rel=0.25)


def test_the_cores_of_an_unknown_cpu_read_a_share_of_a_wide_bus():
    unknown, epyc = cpu_kind("no such processor"), cpu_kind("AMD EPYC 9274F")
    assert most_read(unknown, 76.8) == unknown.reads_gbs
    assert most_read(unknown, 460.8) > 3 * unknown.reads_gbs
    assert most_read(epyc, 460.8) == epyc.reads_gbs


def test_unpacking_costs_by_the_weights_that_a_token_needs():
    """Source: on Strix Halo, 4-bit mixtures read 115 to 141 GB/s, 8-bit ones 165 to 191."""
    halo = opened("sh-framework-desktop-linux")
    rate = rates(halo.device("igpu"), "rocm")
    assert rate.unpack_s > 0

    def unpacked(model, **changes):
        at = LoadSettings(path="m", n_ctx=8192, n_gpu_layers=-1, devices=("x",), **changes)
        return packed_weights(MODELS[model], on_gpu(MODELS[model], at))

    assert unpacked("8B") == pytest.approx(7.5, rel=0.03)  # without the embedding, which is looked up
    assert unpacked("30B-A3B") == pytest.approx(3.05, rel=0.03)
    assert unpacked("30B-A3B", cpu_expert_layers=48) < 0.5 * unpacked("30B-A3B")
    assert unpacked("gpt-oss-20b") < 4


def test_time_is_a_line_over_depth():
    halo = opened("sh-framework-desktop-linux")
    for pick, backend in (("decode_tok_s", "vulkan"), ("prefill_tok_s", "rocm")):
        a, b, c = (1 / getattr(speed(halo, backend, "8B", depth), pick) for depth in (2000, 22_000, 42_000))
        assert b - a == pytest.approx(c - b, rel=1e-6)


def test_prompts_through_radv_slow_down_where_the_mask_leaves_the_caches():
    """Source: a dense 27B on Strix Halo: the bend is at 9,000 tokens with an ubatch of 1,024, 34,000 with 256."""
    halo = opened("sh-framework-desktop-linux")

    def slopes(ubatch):
        depths = (1000, 5000, 30_000, 60_000)
        a, b, c, d = (1 / speed(halo, "vulkan", "8B", depth, ubatch).prefill_tok_s for depth in depths)
        return (b - a) / 4000, (d - c) / 30_000

    for ubatch in (512, 1024):
        before, after = slopes(ubatch)
        assert after > 1.2 * before
    assert slopes(1024)[1] > slopes(512)[1]
    before, after = slopes(128)
    assert after == pytest.approx(before, rel=1e-6), "the mask fits up to 70,000 tokens"


def test_a_model_used_behind_long_texts_gets_a_smaller_ubatch_on_radv():
    halo = opened("sh-framework-desktop-linux", own=False)

    def ubatch(depth):
        history = PlacementHistory(None)
        if depth:
            history.record_use("m", 20_000, float(depth), 1)
        settings = LoadSettings(path="m", n_ctx=131_072)
        query = PlacementQuery(MODELS["8B"], settings, PlacementLimits(), halo, Ledger(lambda: halo), history, "m")
        (found,) = on_gpus(query)
        return found.settings.n_ubatch

    assert ubatch(None) == BACKENDS["vulkan"].n_ubatch
    assert ubatch(60_000) < BACKENDS["vulkan"].n_ubatch


def test_layers_split_over_two_gpus_keep_the_ubatch_of_their_backend():
    halo = opened("sh-framework-desktop-linux", own=False)
    others = tuple(device for device in halo.devices if device.kind != "igpu")
    cards = tuple(replace(halo.device("igpu"), id=name, kind="dgpu") for name in ("one", "two"))
    machine, history = replace(halo, devices=(*others, *cards)), PlacementHistory(None)
    history.record_use("m", 20_000, 60_000.0, 1)
    settings = LoadSettings(path="m", n_ctx=131_072)
    query = PlacementQuery(
        MODELS["8B"], settings, PlacementLimits(), machine, Ledger(lambda: machine), history, "m"
    )
    one, two, both = (candidate.settings for candidate in on_gpus(query))
    assert len(both.devices) == 2
    assert one.n_ubatch == two.n_ubatch < both.n_ubatch == BACKENDS["vulkan"].n_ubatch


def test_points_close_to_each_other_give_the_level_and_not_the_slope():
    """Two prompts of similar length, the second while the computer was busy: half as fast."""

    def forecast(depth):
        return 1.0 + depth / 10_000

    close = (SpeedPoint(32, 1.0, forecast(32)), SpeedPoint(256, 2.0, forecast(256)))
    assert seconds_at(close, 32, forecast) == pytest.approx(1.0)
    assert seconds_at(close, 256, forecast) == pytest.approx(2.0)
    at_the_end = seconds_at(close, 30_000, forecast)
    assert 1.0 * forecast(30_000) < at_the_end < 2.1 * forecast(30_000)
    # Two points that agree on a multiple of the forecast move the whole curve by it.
    alike = [SpeedPoint(depth, 1.5 * forecast(depth), forecast(depth)) for depth in (32, 256)]
    assert seconds_at(alike, 30_000, forecast) == pytest.approx(1.5 * forecast(30_000))
    # A third point at another depth determines the slope, whatever the two close ones suggest.
    far = (*close, SpeedPoint(10_000, 3.0, forecast(10_000)))
    assert seconds_at(far, 30_000, forecast) == pytest.approx(3.0 + (3.0 - 2.0) / 0.9744 * 2, rel=1e-3)


def test_the_constants_are_those_the_script_fits():
    shapes = json.loads(depth_speeds.SHAPES.read_text(encoding="utf-8"))
    rows = depth_speeds.read(depth_speeds.ROWS)
    shipped = {(r.chip, r.backend): r.rates for r in chip_speeds().fitted}
    assert len(shipped) >= 6
    for row in depth_speeds.shipped(rows, shapes):
        for name, value in row["rates"].items():
            assert getattr(shipped[row["chip"], row["backend"]], name) == pytest.approx(value, rel=0.02, abs=1e-7)


def test_published_runs_of_a_fitted_chip_are_met():
    """Calls the program's own function for the header of a real shape: the features equal the script's."""
    halo, errors = opened("sh-framework-desktop-linux"), []
    rows = depth_speeds.read(depth_speeds.ROWS)
    for row in rows:
        backend = {"vulkan-radv": "vulkan", "rocm-7.2.3": "rocm"}.get(row["backend"])
        if backend is None or (row["chip"], row["arch"], row["phase"]) != ("gfx1151", "gpt-oss-20b", "decode"):
            continue
        found = speed(halo, backend, "gpt-oss-20b", max(1.0, row["depth"] + row["n"] / 2))
        errors.append(max(found.decode_tok_s / row["tok_s"], row["tok_s"] / found.decode_tok_s))
    assert len(errors) >= 3
    assert median(errors) < 1.25


def test_a_fitted_chip_without_its_matrix_units_follows_the_rule_again():
    igpu = opened("sh-framework-desktop-linux").device("igpu")
    fitted = next(r.rates for r in chip_speeds().fitted if (r.chip, r.backend) == (igpu.chip, "vulkan"))
    assert rates(igpu, "vulkan") == fitted
    denied = replace(igpu, runtimes=tuple(replace(r, matrix_units=False) for r in igpu.runtimes))
    assert rates(denied, "vulkan").gflops < 0.7 * fitted.gflops
    assert rates(denied, "vulkan").attention_gflops is None


def of_chip(row, *, matrix):
    """A GPU of this row with its usual memory, and each backend of its vendor."""
    runtimes = tuple(
        Runtime(name, "", 0, 0, 0, "usable", matrix_units=matrix and row.has_matrix(name, "linux"))
        for name in bench.BACKENDS[row.vendor]
    )
    memory = Memory(bandwidth_gbs=row.bandwidth_gbs or 100.0)
    return Device(
        id=row.id, kind=row.kind, vendor=row.vendor, name=row.name, state="usable", memory=memory, chip=row.id,
        runtimes=runtimes,
    )  # fmt: skip


@pytest.mark.parametrize("matrix", [True, False], ids=["matrix units", "none reported"])
def test_a_chip_is_never_forecast_faster_than_one_of_its_family_and_memory_that_has_more_of_everything(matrix):
    rows, seconds, compared = chips().gpus, {}, 0

    def taken(row, backend, model):
        key = (row.id, backend, model)
        if key not in seconds:
            at = LoadSettings(path="m", n_ctx=8192, n_gpu_layers=-1, devices=("x",), n_ubatch=512)
            rule = Forecast(MODELS[model], at, ((of_chip(row, matrix=matrix), backend, 1.0),), None)
            seconds[key] = rule.decode_s(1000.0), rule.prompt_s(1000.0)
        return seconds[key]

    for more in rows:
        for less in (row for row in rows if row is not more and more.is_at_least(row)):
            for backend, model in product(bench.BACKENDS[more.vendor], ("8B", "30B-A3B")):
                for large, small in zip(taken(more, backend, model), taken(less, backend, model), strict=True):
                    assert large <= small * (1 + 1e-9), (more.id, less.id, backend, model)
                    compared += 1
    assert compared > 800


def test_the_published_run_of_a_chip_is_met_by_the_rates_of_its_larger_relative():
    """Source: AI Max 385, Llama 3.1 8B Q4_K_M through Vulkan: 833 and 41.6 tokens/s (strixhalo-homelab#11)."""
    at = LoadSettings(path="m", n_ctx=8192, n_gpu_layers=-1, devices=("x",), n_ubatch=512)
    times = {}
    for name in ("gfx1151-8060s", "gfx1151-8050s"):
        rule = Forecast(MODELS["8B"], at, ((of_chip(gpu(name), matrix=True), "vulkan", 1.0),), None)
        times[name] = 1 / rule.prompt_s(256.0), 1 / rule.decode_s(64.0)
    prompt, decode = times["gfx1151-8050s"]
    assert prompt == pytest.approx(833, rel=0.25)
    assert decode == pytest.approx(41.6, rel=0.1)
    assert prompt < 0.9 * times["gfx1151-8060s"][0]


def test_published_runs_count_in_proportion_to_the_memory_of_this_computer():
    """The same chip is sold with faster memory: Ryzen AI Max 400, with LPDDR5X-8533, and no published run."""
    halo = opened("sh-framework-desktop-linux").device("igpu")
    usual = rates(halo, "vulkan")
    for gbs in (273.0, 128.0):
        changed = rates(replace(halo, memory=replace(halo.memory, bandwidth_gbs=gbs)), "vulkan")
        assert changed.gbs == pytest.approx(usual.gbs * gbs / 256)
        assert changed.cache_gbs == pytest.approx(usual.cache_gbs * gbs / 256)
        assert changed.gflops == usual.gflops
    assert rates(replace(halo, memory=Memory(unified=True)), "vulkan") == usual


def test_measured_points_replace_the_forecast_and_grow_with_it():
    def forecast(depth):
        return 1.0 + depth / 1000

    one = (SpeedPoint(1000, 4.0, 2.0),)
    assert seconds_at(one, 3000, forecast) == 8.0
    two = (SpeedPoint(0, 3.0, 1.0), SpeedPoint(1000, 4.0, 2.0))
    assert [seconds_at(two, at, forecast) for at in (0, 1000, 3000)] == [3.0, 4.0, 6.0]
    falling = (SpeedPoint(0, 4.0, 1.0), SpeedPoint(1000, 3.0, 2.0))
    assert seconds_at(falling, 1500, forecast) == 2.5
    assert seconds_at(falling, 100_000, forecast) == 1.5, "never below half of what was measured"
    # Another model of the family, twice as large: the ratio comes from its own forecast at the same depths.
    assert seconds_at(two, 1000, lambda depth: 2 * forecast(depth)) == 8.0
    three = (*two, SpeedPoint(3000, 12.0, 4.0))
    assert seconds_at(three, 2000, forecast) == 8.0


def test_a_measured_place_is_stored_with_chip_driver_and_family(tmp_path):
    igpu = opened("sh-framework-desktop-linux").device("igpu")
    at = LoadSettings(path="m", n_ctx=8192, n_gpu_layers=-1, devices=("x",))

    def rule(model="8B", device=igpu, **changes):
        settings = replace(at, **changes)
        return Forecast(MODELS[model], settings, ((device, "vulkan", 1.0),), None)

    history = PlacementHistory(tmp_path / "dispatch.json")
    found = rule().measured_at([(512, 100.0, 10.0), (4096, 80.0, 8.0)], 16, 1.0)
    history.record_measured(rule().key, found)
    again = PlacementHistory(tmp_path / "dispatch.json")
    speed = expected(rule(), again, "")
    assert speed.measured
    assert 80 < speed.prefill_tok_s < 100
    assert 8 < speed.decode_tok_s < 10
    for other in (
        rule(device=replace(igpu, driver_version="another")),
        rule(device=replace(igpu, chip=None, name="another")),
        rule("30B-A3B"),
        rule(n_gpu_layers=5),
        rule(type_k="q8_0"),
    ):
        assert not expected(other, again, "").measured
    assert expected(rule(n_ctx=4096, n_ubatch=256), again, "").measured


def test_a_curve_has_the_forecast_the_points_and_what_follows_from_both():
    igpu = opened("sh-framework-desktop-linux").device("igpu")
    at = LoadSettings(path="m", n_ctx=65_536, n_gpu_layers=-1, devices=("x",))

    def rule(model="8B"):
        return Forecast(MODELS[model], at, ((igpu, "vulkan", 1.0),), None)

    history = PlacementHistory(None)
    before = speed_curve(rule(), history, "m")
    assert before.expected == before.forecast
    assert not before.measured
    assert [before.forecast[0].length, before.forecast[-1].length] == [64, 65_536]
    for pick in ("prefill_tok_s", "decode_tok_s"):
        speeds = [getattr(point, pick) for point in before.forecast]
        assert speeds == sorted(speeds, reverse=True)
    history.record_measured(rule().key, rule().measured_at([(512, 500.0, 10.0), (8000, 300.0, 8.0)], 32, 1.0))
    after = speed_curve(rule(), history, "m")
    assert len({point.length for point in after.forecast} & {512, 8000}) == 2
    assert [tuple(map(pytest.approx, p)) for p in ((512, 500.0, 10.0), (8000, 300.0, 8.0))] == [
        (p.length, p.prefill_tok_s, p.decode_tok_s) for p in after.measured
    ]
    assert not after.of_family
    for point in after.measured:
        expected_there = next(p for p in after.expected if p.length == point.length)
        assert expected_there.prefill_tok_s == pytest.approx(point.prefill_tok_s, rel=0.01)
        assert expected_there.decode_tok_s == pytest.approx(point.decode_tok_s, rel=0.01)
    # Answers after such prompts shift the whole curve, like the number on the card.
    history.record_correction(igpu.id, "vulkan", "m", 0.5)
    answered = speed_curve(rule(), history, "m")
    assert answered.expected[0].decode_tok_s == pytest.approx(after.forecast[0].decode_tok_s / 2)


def chosen(answers, *, tokens=20_000, n_parallel=16, history=None, model="30B-A3B"):
    """Where Strix Halo with Vulkan and ROCm runs a model that usually generates that many answers at once."""
    halo = opened("sh-framework-desktop-linux")
    history = history or PlacementHistory(None)
    history.record_use("m", tokens, 1000.0, answers)
    settings = LoadSettings(path="m", n_ctx=8192, n_batch=2048, n_parallel=n_parallel)
    query = PlacementQuery(MODELS[model], settings, PlacementLimits(), halo, Ledger(lambda: halo), history, "m")
    return placement_of(query, choose_candidate(query, lambda _settings: None), None)


def test_many_answers_at_once_are_generated_by_rocm_on_strix_halo():
    """Published: Vulkan for 1 to 4, ROCm for 8 to 16; RADV's rate for mixtures halves at 9 rows."""
    assert [chosen(n).backend for n in (1, 2, 4)] == ["vulkan"] * 3
    assert [chosen(n).backend for n in (9, 12, 16)] == ["rocm"] * 3
    one, many = chosen(1), chosen(12)
    (why,) = [r for r in sentences(many.reasons) if "at once" in r]
    assert why.startswith("12.0 of its answers run at once on average: rocm then generates")
    assert not [r for r in sentences(one.reasons) if "at once" in r]
    vulkan = next(a for a in many.alternatives if a.backend == "vulkan")
    assert sentence(vulkan.reason).startswith("slower for 12.0 answers at once")
    assert vulkan.decode_tok_s > many.decode_tok_s, "the card shows the speed of a single answer"


def test_the_number_of_answers_counts_only_after_enough_of_them_and_up_to_those_that_may_run():
    assert chosen(16, tokens=999).backend == "vulkan"
    assert chosen(16, n_parallel=4).backend == "vulkan"


def test_backends_without_a_published_gain_have_that_of_another_on_the_same_chip():
    """No run of a dense model by ROCm was found. Answers in common leave the choice to the speed of prompts."""
    device = opened("sh-framework-desktop-linux").device("igpu")
    for answers in (2, 8, 9, 16):
        gains = [shared_gain(device, backend, answers, experts=False) for backend in ("vulkan", "rocm")]
        assert gains[0] == gains[1] > 1
    speeds = {
        backend: speed(opened("sh-framework-desktop-linux"), backend, "8B", 1000) for backend in ("vulkan", "rocm")
    }
    assert speeds["rocm"].prefill_tok_s > speeds["vulkan"].prefill_tok_s
    assert [chosen(n, model="8B").backend for n in (1, 16)] == ["vulkan", "rocm"]


def test_published_gains_are_met_at_their_numbers_and_between_them():
    device = opened("sh-framework-desktop-linux").device("igpu")
    at = {n: 84.54 * shared_gain(device, "vulkan", n, experts=True) for n in (1, 4, 8, 8.5, 9, 16, 64)}
    published = {1: 84.54, 4: 175.66, 8: 219.42, 9: 130.61, 16: 188.59}
    assert {n: at[n] for n in published} == pytest.approx(published, rel=0.01)
    assert at[9] < at[8.5] < at[8]
    assert at[64] == pytest.approx(293.99, rel=0.01), "beyond what was measured the gain stays"


def test_a_measured_gain_counts_more_than_a_published_one():
    halo = opened("sh-framework-desktop-linux")
    at = LoadSettings(path="m", n_ctx=8192, n_gpu_layers=-1, devices=("x",), n_parallel=16)
    rule = Forecast(MODELS["30B-A3B"], at, ((halo.device("igpu"), "vulkan", 1.0),), None)
    history = PlacementHistory(None)
    history.record_use("m", 20_000, 1000.0, 4)
    assert expected(rule, history, "m").gain == pytest.approx(2.08)
    history.record_measured(rule.key, rule.measured_at([(128, 900.0, 80.0)], 32, 0.0, [(4, 3.0)]))
    found = expected(rule, history, "m")
    assert (found.answers, found.gain) == (4.0, 3.0)
    assert found.turn_s < found.alone_s
