"""Placement follows the rules of known faults on recorded machines, and gives the reason."""

import pytest
from gguf import GGMLQuantizationType
from msgspec.structs import replace

from devices import fault_rules
from devices.doctor import diagnose
from devices.types import Runtime
from engine.core.types import DeviceCheck
from engine.message_catalog import sentence, sentences
from engine.message_catalog.reasons import because
from engine.placement import device_checks, engine_versions, fault_workarounds
from engine.placement.estimate import need_at
from engine.placement.fallbacks import next_fallback, with_variables
from engine.placement.fault_workarounds import applied, found_rules, not_bad
from engine.placement.measurements import TunableSettings
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer, read_shape
from engine.placement.quarantine import forget, found_rule, quarantine
from engine.placement.resources import open_resources
from engine.placement.results import Tuned, machine_key, shape_key
from engine.placement.steps import STEPS, Load, death_key, prefix_cache, run, sound, sound_device
from engine.placement.steps import fault_workarounds as step
from engine.placement.types import NO_OVERRIDES, PlacementLimits
from engine.runner.engine_args import EngineArgs
from engine.runner.llama.batch.step_budget import StepBudget
from engine.runner.protocol import LoadSettings
from tests.support.fakes.scripted import home_paths
from tests.support.machines.machines import reports
from tests.support.models.shapes import scaled, write_hollow

HALO = reports()["sh-linux-amdvlk-vs-rocm"]
IGPU = "0000:c3:00.0"
BAD_ENGINE, SHIPPED = (10455, 10455), (11050, 11050)


def with_rocm(machine, **changes):
    """The machine, with its GPU also available through ROCm."""
    gpu = machine.device(IGPU)
    vulkan = next(r for r in gpu.runtimes if r.backend == "vulkan")
    rocm = Runtime("rocm", "ROCm0", 0, vulkan.total_bytes, vulkan.free_bytes, "usable")
    gpu = replace(gpu, runtimes=(vulkan, rocm))
    return replace(machine, devices=tuple(gpu if d.id == IGPU else d for d in machine.devices), **changes)


def without_rocm(machine):
    gpu = machine.device(IGPU)
    gpu = replace(gpu, runtimes=tuple(r for r in gpu.runtimes if r.backend != "rocm"))
    return replace(machine, devices=tuple(gpu if d.id == IGPU else d for d in machine.devices))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    wide = scaled("llama", vocab=1000, ffn=16384, qtype=GGMLQuantizationType.Q8_0)
    return str(write_hollow(tmp_path_factory.mktemp("faults") / "m.gguf", wide))


@pytest.fixture
def placed(path, tmp_path, monkeypatch):
    resources = open_resources(home_paths(tmp_path))

    def place(machine, builds=SHIPPED, overrides=NO_OVERRIDES, **settings):
        monkeypatch.setattr(fault_workarounds, "engine_builds", lambda _rules, _version: builds)
        ledger = resources.ledger.__class__(lambda: machine)
        load = Load(
            base=LoadSettings(path=path, **{"n_ctx": 4096, **settings}),
            shape=read_shape(path),
            overrides=overrides,
            machine=machine,
            ledger=ledger,
            history=resources.history,
            resources=resources,
        )
        return run(load)

    place.resources = resources
    return place


def words(placement):
    return " | ".join(sentences(placement.reasons))


def test_rocm_is_left_alone_with_a_good_engine_and_not_used_with_a_bad_one(placed):
    machine = with_rocm(HALO)
    assert "not used" not in words(placed(machine))
    bad = placed(machine, BAD_ENGINE)
    assert bad.backend != "rocm"
    assert "rocm is not used on" in words(bad)
    assert "llama.cpp#25992" in words(bad)
    (other,) = [a for a in bad.alternatives if a.backend == "rocm"]
    assert sentence(other.reason).startswith("a known fault: ROCm computes wrong answers")


def test_a_pin_is_obeyed_and_the_fault_is_named(placed):
    machine = with_rocm(HALO)
    pinned = placed(machine, BAD_ENGINE, PlacementLimits(device="ROCm0"))
    assert pinned.backend == "rocm"
    assert "you pinned rocm in spite of a known fault" in words(pinned)
    by_chip = placed(machine, BAD_ENGINE, PlacementLimits(device=IGPU))
    assert by_chip.backend == "vulkan", "a pin on the chip leaves the choice of its backend"


def test_prompts_are_read_in_small_pieces_where_the_kernel_ends_long_work(placed):
    short = replace(HALO, kernel="7.0.12", versions=())
    deep = placed(short, n_ctx=65536, overrides=PlacementLimits(device="vulkan"))
    assert (deep.settings.deep_from, deep.settings.deep_rows) == (32768, 128)
    assert deep.settings.n_ubatch > 128, "short prompts keep their speed"
    assert {c.step for c in deep.changes if c.field == "deep_rows"} == {"fault workarounds"}
    assert "works round a known fault: Linux 7 ends GPU work" in words(deep)
    shallow = placed(short, n_ctx=4096, overrides=PlacementLimits(device="vulkan"))
    assert shallow.settings.deep_rows == 0
    for machine in (replace(HALO, kernel="6.17.0"), replace(short, versions=(("lockup_timeout_ms", "10000"),))):
        assert placed(machine, n_ctx=65536, overrides=PlacementLimits(device="vulkan")).settings.deep_rows == 0
    by_driver = replace(HALO, kernel="6.17.0", versions=(("lockup_timeout_ms", "2000"),))
    assert placed(by_driver, n_ctx=65536, overrides=PlacementLimits(device="vulkan")).settings.deep_rows == 128


def test_variables_reach_the_settings_and_those_of_the_user_are_removed(placed):
    machine = with_rocm(HALO, variables=("GGML_CUDA_ENABLE_UNIFIED_MEMORY",))
    found = placed(machine, overrides=PlacementLimits(device="ROCm0")).settings
    assert "GGML_CUDA_ENABLE_UNIFIED_MEMORY=" in found.variables


def test_the_ladder_skips_what_is_known_to_fail(path, monkeypatch):
    machine, shape = with_rocm(HALO), read_shape(path)
    settings = LoadSettings(path=path, devices=("Vulkan0",), n_gpu_layers=99, n_ubatch=128)
    rules = fault_rules.load()
    for builds, devices in ((SHIPPED, ("ROCm0",)), (BAD_ENGINE, ("Vulkan0",))):
        monkeypatch.setattr(fault_workarounds, "engine_builds", lambda _rules, _version, builds=builds: builds)
        fallback = next_fallback(settings, machine, (), not_bad(rules, shape, machine))
        assert fallback.settings.devices == devices


def test_a_deep_prompt_takes_small_steps(path):
    settings = LoadSettings(path=path, deep_from=1000, deep_rows=128)

    class Api:
        llama_n_threads_batch = staticmethod(lambda _context: 1)

    loaded = type(
        "Loaded", (), {"api": Api, "context": None, "settings": settings, "n_batch": 2048, "n_ubatch": 512}
    )
    pace = StepBudget(loaded, fixed=True)
    assert pace.prefill_budget(0, depth=999) == 2048
    assert pace.prefill_budget(0, depth=1000) == 128
    assert pace.prefill_budget(1, depth=1000) <= 128


def test_a_version_is_refused_for_chips_that_it_fails_on():
    rules, machine = fault_rules.load(), with_rocm(HALO)
    found = engine_versions.faults_of("0.3.35", machine, rules)
    assert {rule.id for _, _, rule in found} >= {"hip-igpu-wrong-answers"}
    assert engine_versions.faults_of("0.3.36", machine, rules) == []
    assert engine_versions.faults_of("0.3.35", without_rocm(HALO), rules) == [], (
        "without ROCm it computes correctly"
    )
    assert engine_versions.faults_of("9.9.9", machine, rules) == [], "its build is not known"


def test_the_doctor_names_a_known_fault_with_its_source(monkeypatch):
    found = {f.id: f for f in diagnose(with_rocm(HALO))}
    monkeypatch.setattr(fault_rules, "engine_builds", lambda _rules, _version: BAD_ENGINE)
    bad = {f.id: f for f in diagnose(with_rocm(HALO))}
    assert "known_hip-igpu-wrong-answers" not in found
    finding = bad["known_hip-igpu-wrong-answers"]
    assert (finding.severity, finding.device) == ("warning", IGPU)
    assert "llama.cpp#25992" in finding.detail
    assert "28604" in finding.fix


def test_every_recorded_machine_keeps_its_choice_of_backend_with_the_shipped_engine(placed):
    """No recorded machine loses its GPU to a rule; with kernel 7, long prompts are read in small chunks."""
    for name, machine in reports().items():
        if not any(d.kind in {"igpu", "dgpu"} and d.runtimes for d in machine.devices):
            continue
        assert "not used on" not in words(placed(machine)), name


def test_the_step_is_named_as_the_card_shows_it():
    assert step.__name__ == "fault_workarounds"
    assert with_variables(("B=2", "A=1"), {"A": ""}) == ("A=", "B=2")


WHY = because("canary_differs", devices=("Vulkan0",), tokens=700, nats=2.0)


def test_what_was_found_wrong_here_is_not_used_until_driver_or_settings_change(placed, path, tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_FAULT_RULES", str(tmp_path / "rules"))
    machine = with_rocm(HALO)
    before = placed(machine)
    assert before.device == IGPU
    resources = open_resources(home_paths(tmp_path))
    shape = read_shape(path)
    check = DeviceCheck(rows=4, kld_mean=2.0, kld_max=5.0, top_changed_frac=0.0, logprob_difference=0.0)
    rule = found_rule(fault_rules.load(), machine, before.settings, shape, sentence)
    monkeypatch.setattr(resources.machine.__class__, "now", lambda _self: machine)
    assert quarantine(resources, "m", before.settings, shape, WHY, check, sentence) == rule.id
    assert fault_rules.found_here() == (rule,)
    after = placed(machine)
    assert (after.backend, after.settings.devices) != (before.backend, before.settings.devices)
    assert f"{before.backend} is not used on" in words(after)
    assert "computed wrongly on this computer" in words(after)
    (finding,) = [one for one in diagnose(machine) if one.id == f"known_{rule.id}"]
    assert finding.severity == "warning"
    assert f"--forget {rule.id}" in finding.fix
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(device_checks, "BOOT_ID", str(tmp_path / "boot"))
    assert placed(machine).settings.devices == after.settings.devices, "a restart of the computer changes nothing"
    newer = replace(machine, kernel="99.1.0-1-generic")
    assert placed(newer).settings.devices == before.settings.devices
    smaller = replace(before.settings, n_ubatch=before.settings.n_ubatch // 2)
    assert not_bad(fault_rules.load(), shape, machine)(smaller)
    assert not not_bad(fault_rules.load(), shape, machine)(before.settings)
    assert forget(resources, rule.id)
    assert not forget(resources, rule.id)
    assert placed(machine).settings.devices == before.settings.devices


def test_the_card_says_that_a_load_was_too_short_for_some_checks_until_they_are_made(placed, path):
    checks, shape = placed.resources.checks, read_shape(path)
    check = DeviceCheck(rows=4, kld_mean=0.0, kld_max=0.0, top_changed_frac=0.0, logprob_difference=0.0)
    before = placed(HALO)
    assert before.settings.devices
    for omitted in ("", "a second prompt after an answer"):
        checks.record(before.settings, shape, HALO, replace(check, omitted=omitted))
        assert ("some checks of Vulkan0 did not fit" in words(placed(HALO))) is bool(omitted)
    checks.record_deep(before.settings, shape, HALO)
    assert "some checks" not in words(placed(HALO))
    assert placed(HALO).settings == before.settings


DIFFERENT = DeviceCheck(rows=4, kld_mean=2.0, kld_max=5.0, top_changed_frac=0.0, logprob_difference=0.0)


def tuned_for(machine, shape, **knobs):
    return Tuned(
        machine_key=machine_key(machine),
        shape_key=shape_key(shape),
        prompt_tokens=512,
        knobs=TunableSettings(**knobs),
        turn_s=1.5,
        default_turn_s=1.8,
        prefill_tok_s=900.0,
        decode_tok_s=321.0,
        choices=(),
        measured_at=1e9,
    )


@pytest.mark.parametrize("later", ["a rule", "a death", "raw arguments", "a fallback"])
def test_a_wrong_device_is_not_used_although_a_later_step_changed_its_settings(placed, path, later):
    """The result is stored for the settings that were loaded: those after all other steps."""
    resources, shape = placed.resources, read_shape(path)
    machine = with_rocm(HALO, variables=("GGML_CUDA_ENABLE_UNIFIED_MEMORY",)) if later == "a rule" else HALO
    options = {"overrides": PlacementLimits(device="ROCm0" if later == "a rule" else "vulkan")}
    usual = placed(machine, **options).settings
    half = {"n_ubatch": usual.n_ubatch // 2}
    if later == "a death":
        resources.history.record_death(death_key("", usual, machine), 4096, half)
    if later == "a fallback":
        resources.history.remember("", half)
    if later == "raw arguments":
        options["engine_args"] = EngineArgs(flash_attn="on", type_k="q8_0", type_v="q8_0")
    loaded = placed(machine, **options).settings
    assert loaded != usual or later == "a rule"
    tried = []
    while loaded.devices:
        tried.append((loaded.devices, loaded.flash_attn))
        resources.checks.record(loaded, shape, machine, DIFFERENT, "it differs")
        loaded = placed(machine, **options).settings
        assert (loaded.devices, loaded.flash_attn) not in tried
    assert len(tried) >= 2


def test_nothing_that_a_device_check_depends_on_is_set_after_it():
    assert STEPS[STEPS.index(sound_device) + 1 :] == (prefix_cache,)


@pytest.mark.parametrize("learned_here", ["tuned", "a fallback", "a death"])
def test_what_was_learned_here_does_not_lead_to_a_place_that_a_known_fault_forbids(placed, path, learned_here):
    resources, machine = placed.resources, with_rocm(HALO)
    usual = placed(machine, BAD_ENGINE)
    if learned_here == "tuned":
        resources.tuned.put(tuned_for(machine, read_shape(path), devices=("ROCm0",), n_gpu_layers=-1))
    if learned_here == "a fallback":
        resources.history.remember("", {"devices": ["ROCm0"]})
    if learned_here == "a death":
        resources.history.record_death(death_key("", usual.settings, machine), 4096, {"devices": ["ROCm0"]})
    assert placed(machine).settings.devices == ("ROCm0",), "a good engine"
    found = placed(machine, BAD_ENGINE)
    assert found.settings.devices == usual.settings.devices == ("Vulkan0",)
    assert words(found).count("rocm is not used on") >= 1


def test_raw_arguments_that_name_a_faulty_place_are_obeyed_and_the_fault_is_named(placed):
    machine, args = with_rocm(HALO), EngineArgs(devices=("ROCm0",))
    found = placed(machine, BAD_ENGINE, engine_args=args)
    assert found.settings.devices == ("ROCm0",)
    assert "you pinned rocm in spite of a known fault" in words(found)
    assert "in spite of" not in words(placed(machine, engine_args=args))


def test_a_known_fault_is_worked_round_although_raw_arguments_ask_for_it(placed, tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_FAULT_RULES", str(tmp_path / "rules"))
    rule = fault_rules.Rule(
        id="here-attention",
        title="Vulkan computes fused attention wrongly",
        effect="wrong answers",
        when=fault_rules.When(backends=("vulkan",), flash=True),
        then=fault_rules.Then(flash_attn="off"),
        sources=("a test",),
    )
    fault_rules.add_found(rule)
    args = EngineArgs(flash_attn="on")
    found = placed(HALO, overrides=PlacementLimits(device="vulkan"), engine_args=args)
    assert (found.backend, found.settings.flash_attn) == ("vulkan", "off")
    assert "works round a known fault: Vulkan computes fused attention wrongly" in words(found)


def test_a_fallback_after_a_crash_is_not_one_that_computes_wrong_results_here(path, tmp_path, monkeypatch):
    resources, shape, machine = open_resources(home_paths(tmp_path)), read_shape(path), with_rocm(HALO)
    monkeypatch.setattr(resources.machine.__class__, "now", lambda _self: machine)
    monkeypatch.setattr(fault_workarounds, "engine_builds", lambda _rules, _version: SHIPPED)
    admission = MemoryAdmission(Placer(resources))
    settings = LoadSettings(path=path, devices=("Vulkan0",), n_gpu_layers=99, n_ubatch=128)
    assert admission._next(settings, ()).settings.devices == ("ROCm0",)
    resources.checks.record(replace(settings, devices=("ROCm0",)), shape, machine, DIFFERENT, "it differs")
    assert admission._next(settings, ()).settings.devices != ("ROCm0",)


def test_a_projector_stays_on_the_processor_where_its_shaders_crash_the_driver(path):
    rules, shape = fault_rules.load(), read_shape(path)
    settings = LoadSettings(path=path, devices=("Vulkan0",), n_gpu_layers=99, mmproj_path=path)
    for mesa, on_cpu in (("25.0.7", True), ("26.0.5", False)):
        machine = replace(HALO, versions=(("mesa", mesa),))
        changed, _ = applied(rules, shape, machine, settings)
        assert changed.projector_on_cpu is on_cpu
        need = need_at(shape, changed, machine.isa, IGPU, None)
        assert {p.device for p in need.parts if p.name == "projector"} == {"cpu" if on_cpu else IGPU}


def test_a_cache_that_raw_arguments_leave_in_memory_goes_where_it_is_read_correctly(path, monkeypatch):
    rules, hybrid = fault_rules.load(), replace(read_shape(path), architecture="qwen35moe")
    args = EngineArgs(kv_offload=False, swa_full=True)
    settings = LoadSettings(path=path, devices=("Vulkan0",), n_gpu_layers=99, engine_args=args)
    for build, offloads in ((9396, None), (SHIPPED[0], False)):
        monkeypatch.setattr(fault_workarounds, "engine_builds", lambda _rules, _version, b=build: (b, b))
        changed, _ = applied(rules, hybrid, HALO, settings)
        assert changed.engine_args == replace(args, kv_offload=offloads)


def test_rules_for_the_processor_are_obeyed_there(path, monkeypatch):
    rules, deepseek = fault_rules.load(), replace(read_shape(path), architecture="deepseek4")
    settings = LoadSettings(path=path, type_k="q8_0", type_v="q8_0", flash_attn="on")
    for build, cache in ((9850, "f16"), (SHIPPED[0], "q8_0")):
        monkeypatch.setattr(fault_workarounds, "engine_builds", lambda _rules, _version, b=build: (b, b))
        changed, _ = applied(rules, deepseek, HALO, settings)
        assert (changed.type_k, changed.type_v) == (cache, cache)


def test_the_next_device_after_a_wrong_one_is_not_one_that_is_known_to_fail(path, tmp_path, monkeypatch):
    resources, shape, machine = open_resources(home_paths(tmp_path)), read_shape(path), with_rocm(HALO)
    settings = LoadSettings(path=path, devices=("Vulkan0",), n_gpu_layers=99, n_ubatch=128, flash_attn="off")
    resources.checks.record(settings, shape, machine, DIFFERENT, "it differs")
    for builds, devices in ((SHIPPED, ("ROCm0",)), (BAD_ENGINE, ())):
        monkeypatch.setattr(fault_workarounds, "engine_builds", lambda _rules, _version, builds=builds: builds)
        assert sound(resources, "", settings, shape, machine).settings.devices == devices


def test_on_the_processor_our_kernels_are_left_out_one_after_the_other(path, tmp_path):
    resources = open_resources(home_paths(tmp_path))
    settings = LoadSettings(path=path, tiles=("q8_0",), repack=True)
    rule = quarantine(resources, "m", settings, read_shape(path), WHY, DIFFERENT, sentence)
    assert resources.history.remembered("m") == {"tiles": ()}
    quarantine(resources, "m", replace(settings, tiles=()), read_shape(path), WHY, DIFFERENT, sentence)
    assert resources.history.remembered("m") == {"tiles": (), "repack": False}
    assert forget(resources, rule)
    assert resources.history.remembered("m") == {}


@pytest.fixture
def after_death(path, placed, monkeypatch):
    """What a server that was started anew stores when a runner died with these settings in a long prompt."""

    def store(machine, settings):
        monkeypatch.setattr(placed.resources.machine.__class__, "now", lambda _self: machine)
        return MemoryAdmission(Placer(placed.resources))._after_prefill_death("", settings, 4096)

    return store


def test_a_death_on_the_device_that_a_wrong_one_led_to_is_known_at_the_next_load(placed, path, after_death):
    machine, shape = with_rocm(HALO), read_shape(path)
    options = {"overrides": PlacementLimits(device="vulkan")}
    while (first := placed(machine, **options).settings).devices == ("Vulkan0",):
        placed.resources.checks.record(first, shape, machine, DIFFERENT, "it differs")
    assert first.devices == ("ROCm0",)
    assert after_death(machine, first) is not None
    found = placed(machine, **options)
    assert (found.settings.devices, found.settings.n_ubatch) == (("ROCm0",), first.n_ubatch // 2)
    assert "a runner died here at 4096 tokens" in words(found)
    short = placed(machine, **options, n_ctx=2048, max_ctx=2048)
    assert short.settings.n_ubatch == first.n_ubatch, "a context that never gets there stays as it is"
    placed.resources.checks.record(found.settings, shape, machine, DIFFERENT, "it differs")
    assert placed(machine, **options).settings.devices == ()


def test_a_death_that_leads_from_a_wrong_device_to_the_processor_is_a_reason_too(placed, path):
    machine, shape = with_rocm(HALO), read_shape(path)
    options = {"overrides": PlacementLimits(device="vulkan")}
    while (first := placed(machine, **options).settings).devices == ("Vulkan0",):
        placed.resources.checks.record(first, shape, machine, DIFFERENT, "it differs")
    on_cpu = {"devices": [], "n_gpu_layers": 0}
    placed.resources.history.record_death(death_key("", first, machine), 4096, on_cpu)
    found = placed(machine, **options)
    assert found.settings.devices == ()
    assert words(found).count("a runner died here at 4096 tokens") == 1


@pytest.mark.parametrize("is_wrong", [False, True])
def test_no_settings_with_which_a_runner_died_are_loaded_again_after_restarts(placed, path, after_death, is_wrong):
    machine, shape, dead = with_rocm(HALO), read_shape(path), []
    while True:
        settings = placed(machine).settings
        assert settings not in dead
        dead.append(settings)
        if is_wrong and len(dead) == 1:
            placed.resources.checks.record(settings, shape, machine, DIFFERENT, "it differs")
        elif after_death(machine, settings) is None:
            break
    assert {one.devices for one in dead} == {("Vulkan0",), ("ROCm0",), ()}


def test_a_fault_found_here_depends_on_the_drivers_known_versions_only(placed, path):
    versions = (("lockup_timeout_ms", "2000"), ("mesa", "25.1.3"), ("mes", "unknown"))
    machine = with_rocm(HALO, versions=versions)
    rule = found_rule(fault_rules.load(), machine, placed(machine).settings, read_shape(path), sentence)
    assert rule.when.versions.keys() & dict(versions).keys() == {"mesa"}


@pytest.mark.parametrize(("gib", "found"), [(2.0, ["adreno-x1-2gib-allocation"]), (1.9, [])])
def test_the_largest_tensor_decides_about_a_limit_of_one_allocation(path, gib, found):
    opencl = Runtime("opencl", "GPUOpenCL", 0, 1 << 34, 1 << 34, "usable")
    gpu = replace(HALO.device(IGPU), name="Adreno(TM) X1-85", runtimes=(opencl,))
    shape = read_shape(path)
    large = replace(shape.tensors[0], nbytes=int(gib * 2**30))
    matched = found_rules(
        fault_rules.load(),
        replace(shape, tensors=(*shape.tensors, large)),
        replace(HALO, devices=(gpu,)),
        LoadSettings(path=path, n_gpu_layers=99, devices=("GPUOpenCL",)),
    )
    assert [rule.id for rule in matched] == found
