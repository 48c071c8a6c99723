"""The machine that runs the tests: read fast and completely, and the same after recording and replaying."""

import json
import os
import sys

import psutil
import pytest

from devices.as_json import to_json
from devices.detect import detailed, inventory
from devices.errors import BadRecording
from devices.host_real import RealHost
from devices.recording import FORMAT, RecordedHost, RecordingHost, load_recording, redact, save_recording
from devices.report import live_report, recorded_report
from tests.support.unhindered import Stopwatch


def test_inventory_reads_files_only_and_quickly():
    inventory(RealHost())
    fastest = min(_timed(lambda: inventory(RealHost())) for _ in range(5))
    assert fastest < 0.1


def _timed(call):
    started = Stopwatch()
    call()
    return started.seconds()


def test_cores_and_memory_agree_with_psutil():
    machine = inventory(RealHost())
    cores = machine.devices[0].cores
    assert cores.logical == psutil.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        assert cores.allowed_logical == len(os.sched_getaffinity(0))
    assert machine.memory.total_bytes == psutil.virtual_memory().total


@pytest.mark.native
@pytest.mark.process
def test_the_whole_report_is_quick_once_warm(tmp_path):
    cache = tmp_path / "backends.json"
    first = live_report(RealHost(), cache)
    fastest = min(_timed(lambda: live_report(RealHost(), cache)) for _ in range(3))
    assert fastest < 1
    cpu = first.devices[0]
    assert cpu.state == "usable"
    assert {r.backend for r in cpu.runtimes} >= {"cpu"}
    assert any(r.backend == "cpu" and r.features for r in first.backends)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ggml's names for Linux")
@pytest.mark.native
@pytest.mark.process
def test_the_kernels_report_the_instruction_sets_the_inventory_found():
    machine = live_report(RealHost(), None)
    inventory_isa = set(inventory(RealHost()).devices[0].isa)
    assert inventory_isa <= set(machine.devices[0].isa)
    features = {f.lower() for r in machine.backends if r.backend == "cpu" for f in r.features}
    if "avx2" in inventory_isa:
        assert "avx2" in features


def test_a_recording_replays_as_the_same_machine(tmp_path):
    host = RecordingHost(RealHost())
    live = detailed(host)
    path = tmp_path / "machine.json"
    save_recording(path, host.recording())
    replayed = detailed(load_recording(path))
    assert replayed.devices == live.devices
    assert replayed.memory == live.memory
    assert replayed.kernel == live.kernel


@pytest.mark.native
@pytest.mark.process
def test_recorded_backends_are_replayed(tmp_path):
    host = RecordingHost(RealHost())
    live = live_report(host, None)
    path = tmp_path / "machine.json"
    save_recording(path, host.recording(to_json(list(live.backends))))
    assert recorded_report(load_recording(path)).devices == live.devices


def test_a_recording_holds_nothing_personal():
    private = {
        "format": FORMAT,
        "system": "linux",
        "files": {
            "/proc/cmdline": "root=UUID=1234-abcd hostname=secret amd_iommu=off quiet",
            "/run/udev/data/+dmi:id": "E:MEMORY_DEVICE_0_SERIAL_NUMBER=S3CRET\nE:MEMORY_DEVICE_0_SIZE=1\n",
        },
        "api": {"now": 1, "path": "/home/alice/models"},
    }
    host = RecordingHost(RecordedHost(private))
    for path in private["files"]:
        host.read(path)
    host.api("path")
    text = json.dumps(host.recording())
    assert "amd_iommu=off" in text
    assert "MEMORY_DEVICE_0_SIZE" in text
    for secret in ("1234-abcd", "secret", "S3CRET", "alice"):
        assert secret not in text


def test_redaction_keeps_what_is_harmless():
    assert redact("x", {"a": [1, "two"], "serial": 4}) == {"a": [1, "two"]}


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"format": "other"}', b"[" * 100000])
def test_a_file_that_is_no_recording_is_refused(tmp_path, content):
    path = tmp_path / "machine.json"
    path.write_bytes(content)
    with pytest.raises(BadRecording):
        load_recording(path)


def test_a_missing_recording_is_refused(tmp_path):
    with pytest.raises(BadRecording, match="No such file"):
        load_recording(tmp_path / "none.json")
