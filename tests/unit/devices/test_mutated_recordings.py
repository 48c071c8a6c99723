"""Properties that hold for any machine, even if its own reports are broken."""

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devices.detect import detailed
from devices.recording import RecordedHost
from devices.report import recorded_report
from tests.support.examples import examples
from tests.support.machines.machines import machines

RECORDINGS = machines()
SECTIONS = ("files", "links", "access", "commands", "registry", "sysctl", "api")
GARBAGE = st.one_of(
    st.just(""),
    st.just("\n"),
    st.just("-1"),
    st.just("N/A"),
    st.just("18446744073709551616"),
    st.just("9" * 400),
    st.just("Speicher gesamt: 32 GB"),
    st.just("\udcff\udcfe\x00"),
    st.text(max_size=40),
    st.integers(-(2**70), 2**70),
    st.none(),
    st.just([]),
    st.just({"returncode": 0, "stdout": "\x00,,,,,\n"}),
    st.just([{"efficiency": "x", "logical": -4, "vendor_id": 4098, "device_id": 5510, "dedicated": "viel"}]),
    st.binary(max_size=20),
)


@st.composite
def broken_machines(draw):
    recording = copy.deepcopy(RECORDINGS[draw(st.sampled_from(sorted(RECORDINGS)))])
    for _ in range(draw(st.integers(1, 8))):
        section = draw(st.sampled_from(SECTIONS))
        keys = sorted(recording[section])
        if keys:
            key = draw(st.sampled_from(keys))
            if draw(st.booleans()):
                del recording[section][key]
            else:
                recording[section][key] = draw(GARBAGE)
    return recording


@pytest.mark.slow
@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(broken_machines())
def test_a_broken_machine_is_still_described(recording):
    machine = recorded_report(RecordedHost(recording))
    ids = [device.id.lower() for device in machine.devices]
    assert len(ids) == len(set(ids))
    assert machine.devices[0].kind == "cpu"
    addresses = [device.pci for device in machine.devices if device.pci]
    assert len(addresses) == len(set(addresses))
    for device in machine.devices:
        memory = device.memory
        if device.state != "usable":
            assert device.fix_hint
        for held in (memory.budget_bytes, memory.available_bytes):
            assert held is None or held >= 0
            assert held is None or memory.physical_bytes is None or held <= memory.physical_bytes


@settings(max_examples=examples(60), deadline=None)
@given(st.dictionaries(st.text(max_size=30), GARBAGE, max_size=6), st.sampled_from(["linux", "windows", "macos"]))
def test_a_machine_of_nonsense_is_still_described(nonsense, system):
    recording = {"system": system, **dict.fromkeys(SECTIONS, nonsense)}
    assert detailed(RecordedHost(recording)).devices


def test_every_file_empty_reads_as_unknown():
    for recording in RECORDINGS.values():
        emptied = {
            **recording,
            "files": dict.fromkeys(recording["files"], ""),
            "sysctl": {},
            "api": {},
            "registry": {},
        }
        machine = detailed(RecordedHost(emptied))
        assert machine.memory.total_bytes is None
        assert machine.devices[0].name == "unknown CPU"
