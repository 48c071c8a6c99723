"""A backend probe may hang, crash, print garbage or be broken: the report is complete and says what happened."""

import shutil
import sys
import time
from pathlib import Path

import pytest

from devices.backends import backend_probe
from devices.backends.backend_probe import ProbeSpec, try_backends
from devices.backends.libraries import library_folder
from devices.child import PATIENCE
from devices.detect import detailed
from devices.host_real import RealHost
from devices.report import installed_trials
from tests.support.servers import runs, wait_for

LIMIT_S = 2.0
HANG = "import time; time.sleep(600)"
SPAWN = (
    "import subprocess, sys, time; "
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "open({file!r}, 'w').write(str(p.pid)); time.sleep(600)"
)
PROBES = {
    "hanging": (HANG, "no answer within 2 s"),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    "crashing": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
    "silent": ("", "code 0 and no answer"),
    "babbling": ("print('x' * 4000000); raise SystemExit(3)", "code 3 and no answer"),
    "explaining": ("import sys; sys.stderr.write('no ICD found'); sys.exit(1)", "no ICD found"),
    "not-json": ("print('{broken')", "no answer"),
    "nested": ("print('{\"a\":' * 100000)", "no answer"),
    "wrong-shape": ('print(\'{"devices": [{"name": 3}]}\')', "could not be read"),
}


def trial(name: str, source: str) -> ProbeSpec:
    return ProbeSpec(name, f"lib{name}.so", (sys.executable, "-c", source))


@pytest.fixture(scope="module")
def machine():
    return detailed(RealHost())


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_each_way_to_fail_is_reported_and_none_delays_the_others(machine):
    good = tuple(t for t in installed_trials(library_folder(), onnx=False) if t.backend == "cpu")
    trials = (*(trial(name, source) for name, (source, _) in PROBES.items()), *good)
    started = time.monotonic()
    reports = {r.backend: r for r in try_backends(machine, None, timeout_s=LIMIT_S, trials=trials)}
    # A child that computes has several times the limit on a busy CPU; one hangs for 600 s.
    assert time.monotonic() - started < LIMIT_S * PATIENCE + 10
    for name, (_, reason) in PROBES.items():
        assert reports[name].state == "failed"
        assert reason in reports[name].reason
        assert reports[name].fix_hint
    assert reports["cpu"].state in {"usable", "failed"}  # a busy machine may not answer in 2 s


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_a_hanging_probe_takes_its_children_with_it(machine, tmp_path):
    file = tmp_path / "pid"
    reports = try_backends(
        machine, None, timeout_s=LIMIT_S, trials=(trial("forking", SPAWN.format(file=str(file))),)
    )
    assert reports[0].state == "failed"
    pid = int(file.read_text())
    wait_for(lambda: not runs(pid), 60, "the grandchild's end")


def test_a_program_that_cannot_start_is_a_failed_backend(machine):
    missing = ProbeSpec("missing", "libmissing.so", ("/nonexistent/program",))
    report = try_backends(machine, None, trials=(missing,))[0]
    assert (report.state, "could not be started" in report.reason) == ("failed", True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the libraries' Linux names")
def test_a_corrupt_backend_library_fails_alone(machine, tmp_path, monkeypatch):
    folder = library_folder()
    assert folder is not None
    for path in folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "libggml-vulkan.so").write_bytes(b"\x7fELF not a library")
    shutil.copy(folder / "libggml-base.so.0", tmp_path / "libggml-cuda.so")  # loads, but is no backend
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    trials = installed_trials(library_folder(), onnx=False)
    reports = {r.backend: r for r in try_backends(machine, None, timeout_s=30, trials=trials)}
    assert reports["cpu"].state == "usable"
    assert reports["vulkan"].state == "failed"
    assert reports["cuda"].state == "failed"
    assert "libggml-vulkan.so" in reports["vulkan"].reason


def test_an_empty_library_folder_means_not_built(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    trials = installed_trials(library_folder(), onnx=False)
    reports = {r.backend: r for r in try_backends(machine, None, timeout_s=30, trials=trials)}
    assert reports["cpu"].state == "not_built"
    assert reports["cpu"].fix_hint


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": 1}', b"\xff\xfe", b'{"k": {"backend": 1}}'])
def test_a_broken_cache_is_ignored_and_replaced(machine, tmp_path, content):
    cache = tmp_path / "backends.json"
    cache.write_bytes(content)
    trials = (trial("fine", 'print(\'{"devices": [], "features": []}\')'),)
    assert try_backends(machine, cache, trials=trials)[0].state == "no_device"
    assert cache.read_bytes() != content


def test_failures_are_tried_again_and_successes_remembered(machine, tmp_path):
    counter = tmp_path / "count"
    source = f"open({str(counter)!r}, 'a').write('x'); print('{{\"devices\": []}}')"
    failing = f"open({str(counter)!r}, 'a').write('f'); raise SystemExit(1)"
    cache = tmp_path / "backends.json"
    for _ in range(2):
        try_backends(machine, cache, trials=(trial("works", source), trial("fails", failing)))
    assert sorted(counter.read_text()) == ["f", "f", "x"]


def test_a_driver_that_was_installed_since_is_found_without_a_restart(machine, tmp_path, monkeypatch):
    """The files that list drivers change with a driver's package, such as vulkan-radeon next to vulkan-intel."""
    cache, ran, listed = tmp_path / "backends.json", tmp_path / "ran", tmp_path / "icd.d"
    monkeypatch.setattr(backend_probe, "DRIVER_MARKS", (str(listed),))
    tried = (trial("vulkan", f"open({str(ran)!r}, 'a').write('x'); print('{{\"devices\": []}}')"),)
    for num_runs in (1, 1):
        try_backends(machine, cache, trials=tried)
        assert len(ran.read_text()) == num_runs
    listed.mkdir()
    try_backends(machine, cache, trials=tried)
    assert len(ran.read_text()) == 2


def test_an_unwritable_cache_costs_nothing_but_time(machine, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    trials = (trial("fine", "print('{\"devices\": []}')"),)
    assert try_backends(machine, blocked / "backends.json", trials=trials)[0].state == "no_device"
    assert Path(blocked).read_text() == ""
