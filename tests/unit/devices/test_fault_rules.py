"""Known bad combinations: the rules that match machines in public threads, and files that are refused."""

import json
import os
from datetime import date

import msgspec
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from devices import fault_rules
from devices.errors import FaultRulesRefused
from devices.fault_rules import Builds, Facts, Span, Then, load, matching, numbers, parse, together, update
from devices.recording import RecordedHost
from devices.report import work_round_crashes
from devices.system_checks import driver_versions
from devices.types import Device, Machine, Memory, Runtime, SystemMemory
from engine.core.paths import user_paths
from engine.placement.device_checks import DeviceChecks
from engine.placement.placer import read_shape
from engine.runner.protocol import LoadSettings
from tests.support.fakes.minisign_signer import Signer
from tests.support.machines.known_states import FURTHER, agrees, build_of, build_on, decide, facts_of, states
from tests.support.models.shapes import scaled, write_shape

STATES = [*states(), *states(FURTHER)]


@pytest.fixture(scope="module")
def rules():
    return parse(fault_rules.SHIPPED.read_bytes())


@pytest.mark.parametrize("state", STATES, ids=lambda state: state["id"])
def test_the_decision_is_what_the_thread_found_to_work(rules, state):
    decision = decide(rules.rules, facts_of(state, rules))
    assert agrees(state, decision), (decision.backend, [rule.id for rule in decision.rules])


@pytest.mark.parametrize(("largest_gib", "backend"), [(2.1, "cpu"), (1.9, "opencl"), (None, "opencl")])
def test_a_tensor_that_opencl_cannot_allocate_at_once_stays_off_the_gpu(rules, largest_gib, backend):
    facts = Facts(backend="opencl", system="windows", gpu="Qualcomm Adreno(TM) X1-85", tensor_gib=largest_gib)
    assert decide(rules.rules, facts).backend == backend
    newer = msgspec.structs.replace(facts, gpu="Qualcomm Adreno(TM) X2-90")
    assert decide(rules.rules, newer).backend == "opencl"


def test_every_rule_has_a_source_a_chip_or_version_and_a_way_round(rules):
    for rule in rules.rules:
        assert rule.sources, rule.id
        assert rule.then != Then(), rule.id
        assert rule.title.strip() == rule.title != "", rule.id


@pytest.mark.parametrize(
    ("version", "first", "until", "only", "held"),
    [
        ("7.0.0-29-generic", "7.0", "", (), True),
        ("6.18.4", "7.0", "", (), False),
        ("32.0.101.8860", "32.0.101.8509", "32.0.101.8860", (), False),
        ("32.0.101.8859", "32.0.101.8509", "32.0.101.8860", (), True),
        ("7.2.4", "", "", ("7.2",), True),
        ("7.20", "", "", ("7.2",), False),
        ("13.2.78", "13.2.0", "13.2.80", (), True),
        ("", "7.0", "", (), False),
        ("unknown", "", "8", (), False),
    ],
)
def test_versions_are_compared_number_by_number(version, first, until, only, held):
    assert Span(first, until, only).holds(version) is held


def test_a_version_may_have_words_around_it():
    assert numbers("Adrenalin 26.3.1 (LLPC)") == (26, 3, 1)
    assert numbers("v6.18-rc3") == (6, 18)
    assert numbers("none") == ()


def halo(**changes):
    facts = {"backend": "rocm", "system": "linux", "vendor": "AMD", "gpu": "gfx1151 Radeon 8060S"}
    return Facts(**{**facts, **changes})


def of(rules, name):
    return next(rule for rule in rules.rules if rule.id == name)


def test_a_repair_counts_by_its_commit_and_only_on_the_chip_that_it_repairs(rules):
    wrong = [of(rules, "hip-igpu-wrong-answers")]
    assert matching(wrong, halo(builds=(10566, 10566)))
    assert not matching(wrong, halo(builds=(10566, 10566), patches=("865374bb",)))
    assert matching(wrong, halo(builds=(10566, 10566), patches=("865374bb",), gpu="gfx1150 Radeon 890M"))
    assert not matching(wrong, halo(builds=(10566, 10566), patches=("ec92815aa",), gpu="gfx1150"))
    assert not matching(wrong, halo(builds=(10039, 10039)))
    assert not matching(wrong, halo(builds=(11050, 11050)))


def test_in_doubt_about_the_engine_wrong_answers_count_and_crashes_do_not(rules):
    silent, loud = of(rules, "hip-igpu-wrong-answers"), of(rules, "hip-rdna2-fa-assert")
    loud = msgspec.structs.replace(
        loud,
        when=msgspec.structs.replace(loud.when, builds=Builds(10, 20), gpu=""),
        then=Then(avoid=True),
    )
    assert matching([silent], halo(builds=(9900, 10100)))
    assert not matching([loud], halo(flash=True, builds=(5, 15)))
    assert matching([loud], halo(flash=True, builds=(11, 15)))
    assert not matching([silent], halo()), "an engine of which nothing is known is not accused"


def test_an_avoided_backend_leads_to_one_that_is_judged_too(rules):
    facts = halo(builds=(10469, 10469), depth=131072, ubatch=512, versions={"kernel": "7.1.8"})
    decision = decide(rules.rules, facts)
    assert decision.backend == "vulkan"
    assert (decision.then.max_ubatch, decision.then.depth) == (128, 32768)
    assert any("28604" in words for words in decision.engine)
    assert decide(rules.rules, halo(builds=(10469, 10469)), other={}).backend == "cpu"


def test_of_two_rules_the_stricter_limit_counts():
    first = Then(max_ubatch=128, depth=32768, environment={"GGML_VK_A": "1"})
    second = Then(max_ubatch=64, depth=8192, environment={"GGML_VK_B": "1"}, max_draft=7)
    rule = parse(fault_rules.SHIPPED.read_bytes()).rules[0]
    both = together(msgspec.structs.replace(rule, then=then) for then in (first, second))
    assert (both.max_ubatch, both.depth, both.max_draft) == (64, 8192, 7)
    assert both.environment == {"GGML_VK_A": "1", "GGML_VK_B": "1"}


# ---- Files


def file(**changes):
    rows = json.loads(fault_rules.SHIPPED.read_bytes())
    rows |= changes
    return json.dumps(rows).encode()


def with_rule(**parts):
    rule = json.loads(fault_rules.SHIPPED.read_bytes())["rules"][0]
    return file(rules=[{**rule, **parts}])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b" " * (fault_rules.MAX_BYTES + 1), "at most"),
        (file(format=2), "format 2"),
        (file(dates={}), "fewer than two dates"),
        (file(rules=json.loads(file())["rules"][:1] * 2), "two of its rules"),
        (with_rule(then={"environment": {"LD_PRELOAD": "/tmp/x.so"}}), "may not set"),
        (with_rule(then={"environment": {"GGML_BACKEND_PATH": "/tmp"}}), "may not set"),
        (with_rule(then={"environment": {"GGML_VK_\nPATH": "1"}}), "may not set"),
        (with_rule(then={"max_ubatch": -1}), "impossible"),
        (with_rule(then={"delete": True}), "cannot be read"),
        (with_rule(when={"backends": ["rocm"], "gpu": "("}), "pattern"),
        (with_rule(when={"backends": ["rocm"], "gpu": "(a+)+b"}), "nested repetition"),
        (with_rule(when={"backends": ["rocm"], "gpus_": 2}), "cannot be read"),
        (with_rule(id="../x"), "cannot be read"),
    ],
)
def test_what_is_no_sound_file_of_rules_is_refused_in_words(data, words):
    with pytest.raises(FaultRulesRefused, match=words):
        parse(data)


def test_a_newer_file_counts_and_an_older_or_damaged_one_does_not(tmp_path):
    shipped = load(tmp_path)
    with pytest.raises(FaultRulesRefused, match="issued"):
        update(file(), tmp_path)
    newer = update(with_rule(id="new").replace(str(shipped.issued).encode(), b"2999-01-01"), tmp_path)
    assert [rule.id for rule in newer.rules] == ["new"] == [rule.id for rule in load(tmp_path).rules]
    (tmp_path / fault_rules.UPDATE).write_bytes(b"{")
    assert load(tmp_path) == shipped
    (tmp_path / fault_rules.UPDATE).write_bytes(
        with_rule(id="old").replace(str(shipped.issued).encode(), b"2000-01-01")
    )
    assert load(tmp_path) == shipped


def test_rules_found_here_are_added_and_never_replace_a_shipped_one(tmp_path):
    current = fault_rules.CurrentRules(tmp_path)
    shipped = current.now()
    first = shipped.rules[0]
    own = [msgspec.structs.replace(first, id="here"), msgspec.structs.replace(first, title="other")]
    (tmp_path / fault_rules.LOCAL).write_bytes(msgspec.json.encode(own))
    found = current.now()
    assert found.rules[: len(shipped.rules)] == shipped.rules
    assert [rule.id for rule in found.rules[len(shipped.rules) :]] == ["here"]


def test_dates_between_and_beyond_the_known_ones_have_a_build(rules):
    days = sorted(rules.dates)
    builds = [build_on(rules, day) for day in days]
    assert builds == [rules.dates[day] for day in days]
    assert build_on(rules, date(2026, 7, 20)) > rules.dates[date(2026, 7, 16)]
    assert build_on(rules, date(2027, 1, 1)) > builds[-1]
    assert build_on(rules, date(2000, 1, 1)) == 0
    assert build_of(rules, "0c1e57098bba43ac29e6") == rules.python_versions["0.3.36"]
    assert build_of(rules, "0c1e") is None


# ---- The command


def invoked(*words):
    return CliRunner().invoke(cli, ["engine", "faults", *words])


def test_the_command_lists_rules_and_takes_signed_ones_only(tessera_home, tmp_path):
    assert "--all lists them" in invoked().output
    rows = json.loads(invoked("--all", "--json").output)["rules"]
    assert {"hip-jamba", "cuda-13.2-iq-s"} <= {row["id"] for row in rows}
    assert "known with" not in invoked("--all").output
    path, signer, other = tmp_path / "rules.json", Signer(), Signer()
    path.write_bytes(with_rule(id="new").replace(str(load().issued).encode(), b"2999-01-01"))
    signature = path.with_name("rules.json.minisig")
    assert "kernels.keys names no key" in invoked("--update", str(path)).output
    assert CliRunner().invoke(cli, ["settings", "set", "kernels.keys", signer.public]).exit_code == 0
    assert "cannot be read" in invoked("--update", str(path)).output, "there is no signature"
    signature.write_text(other.sign(path.read_bytes()))
    assert "was changed" in invoked("--update", str(path)).output
    signature.write_text(signer.sign(b"something else"))
    assert "was changed" in invoked("--update", str(path)).output
    assert len(load().rules) > 1
    signature.write_text(signer.sign(path.read_bytes()))
    assert "1 rules of 2999-01-01" in invoked("--update", str(path)).output
    assert [rule.id for rule in load().rules] == ["new"]
    assert "issued" in invoked("--update", str(path)).output, "the same file again is not newer"


def test_what_the_check_of_a_device_found_here_is_listed(tessera_home, tmp_path):
    checks = DeviceChecks(user_paths().state / "device_checks.json", None)
    gpu = msgspec.structs.replace(
        laptop("1").devices[0], runtimes=(Runtime("vulkan", "Vulkan0", 0, 1, 1, "usable"),)
    )
    machine = msgspec.structs.replace(laptop("1"), devices=(gpu,))
    settings = LoadSettings(path="m.gguf", devices=("Vulkan0",), n_gpu_layers=9, flash_attn="off")
    shape = read_shape(str(write_shape(tmp_path / "m.gguf", scaled("llama", layers=1, embd=64, vocab=300))))
    checks.record(settings, shape, machine, None, "computes several sequences in one batch wrongly")
    assert "Found by the check of this computer: Vulkan0: computes several sequences" in invoked().output
    (found,) = json.loads(invoked("--json").output)["found_here"]
    assert found["what"] == "Vulkan0"


def test_a_version_that_fails_on_a_gpu_here_is_refused_before_it_is_built(tessera_home, monkeypatch):
    built = []
    monkeypatch.setattr("app.cli.engine._built", lambda version, _work: built.append(version))
    monkeypatch.setattr("engine.services.EngineFacade.engine_fault", lambda _self, _version: "on GPU0: noise")
    answer = CliRunner().invoke(cli, ["engine", "install", "0.3.35"])
    assert answer.exit_code == 3
    assert "0.3.35 was refused: on GPU0: noise. --force installs it anyway" in answer.output
    assert built == []


# ---- This computer


def test_the_compiler_of_a_pack_may_be_at_fault(rules):
    (rule,) = known = fault_rules.of_compiler(rules, "cuda", {"nvcc": "13.2.78"})
    assert (rule.id, len(known)) == ("cuda-13.2-iq-s", 1)
    for backend, built in (("cuda", {"nvcc": "13.2.86"}), ("cuda", {}), ("vulkan", {"nvcc": "13.2.78"})):
        assert fault_rules.of_compiler(rules, backend, built) == []


def laptop(driver_version):
    gpu = Device(
        id="0000:c4:00.0", kind="igpu", vendor="AMD", name="AMD Radeon(TM) 860M Graphics", state="present",
        memory=Memory(), arch="gfx1152", driver_version=driver_version,
    )  # fmt: skip
    return Machine(
        system="windows", kernel="10.0.26100", arch="x86_64", environment="", product="", memory=SystemMemory(),
        devices=(gpu,),
    )  # fmt: skip


SWITCH = "GGML_VK_DISABLE_COOPMAT"


def test_a_driver_that_crashes_when_asked_for_its_gpus_gets_the_switch_before_it_is_asked(monkeypatch):
    monkeypatch.setenv(SWITCH, "")  # restores the earlier rules
    monkeypatch.delenv(SWITCH)
    work_round_crashes(laptop("32.0.24033.1002"))
    assert SWITCH not in os.environ, "a newer driver"
    work_round_crashes(laptop("32.0.23033.1002"))
    assert os.environ[SWITCH] == "1"
    monkeypatch.setenv(SWITCH, "0")
    work_round_crashes(laptop("32.0.23033.1002"))
    assert os.environ[SWITCH] == "0", "the user's own value stays"


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        ("AMD Radeon 8060S Graphics (RADV STRIX_HALO)", True),
        ("AMD Radeon(TM) 8050S Graphics", True),
        ("Radeon 890M", True),
        ("AMD Radeon 780M Graphics (RADV PHOENIX)", True),
        ("AMD Radeon RX 9070 XT", False),
        ("gfx1201 Radeon 8060S", False),
    ],
)
def test_a_chip_without_its_architecture_is_known_by_its_name(rules, name, matches):
    facts = halo(gpu=name, builds=(10469, 10469))
    found = {rule.id for rule in matching(rules.rules, facts)}
    assert ("hip-igpu-wrong-answers" in found) is matches


@pytest.mark.parametrize(
    ("system", "vendor", "version", "key", "expected"),
    [
        ("windows", "NVIDIA", "32.0.15.8088", "nvidia", "580.88"),
        ("windows", "NVIDIA", "580.88", "nvidia", "580.88"),
        ("linux", "NVIDIA", "575.64.03", "nvidia", "575.64.03"),
        ("windows", "AMD", "32.0.23033.1002", "windows_driver", "32.0.23033.1002"),
    ],
)
def test_a_drivers_version_has_the_number_that_rules_use(system, vendor, version, key, expected):
    device = Device("1", "dgpu", vendor, "x", "usable", Memory(), driver="nvidia", driver_version=version)
    machine = Machine(system, "k", "x86_64", "", "", SystemMemory(), (device,))
    assert fault_rules.gpu_facts(machine, device, "vulkan", None).versions[key] == expected


def test_amds_release_on_windows_is_read_from_the_registry():
    key = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}\0001"
    host = RecordedHost({"format": 1, "system": "windows", "registry": {key: {"RadeonSoftwareVersion": "26.3.1"}}})
    assert dict(driver_versions(host)) == {"adrenalin": "26.3.1"}
