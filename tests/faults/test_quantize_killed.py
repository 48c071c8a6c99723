"""Kills in every phase of measuring, rounding and verifying, full disks, two concurrent jobs: no leftovers."""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from quantize.child import Child, ChildDied
from quantize.errors import DiskFull, SourceChanged
from quantize.files.gguf_file import read_gguf
from quantize.job.execute import quantize
from quantize.job.request import QuantizeRequest
from quantize.measurements import encode
from quantize.types import SizeTarget
from tests.support.models.measured_model import HELD_OUT, ignore, never
from tests.support.models.small_folder import NARROW, first_layers, short_text, small_file
from tests.support.reports import read_report
from tests.support.servers import runs, wait_for

TYPES = ("Q4_K", "Q5_K", "Q8_0")  # those of `three_types`
pytestmark = [
    pytest.mark.usefixtures("kept", "three_types"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.name == "nt", reason="signals and mounts"),
]

# Stops permanently at a given point: its children may finish their work, but nothing new starts.
JOB = """
import sys, time
from quantize.measurements import decode
from quantize.job import forecast
from quantize.job.execute import quantize
from quantize.job.request import QuantizeRequest
def tell(progress):
    if progress.phase == sys.argv[2] and (progress.total > 1 or progress.phase == "survey"):
        print("there", flush=True)
        time.sleep(600)
forecast.MEASURED = tuple(t for t in forecast.MEASURED if t.name in sys.argv[3:])
quantize(decode(sys.argv[1], QuantizeRequest), tell, lambda: False)
"""
# In the order of a job: each run continues where the previous one was killed.
PHASES = ("smooth", "survey", "moments", "errors", "alpha", "round", "write", "verify")


@pytest.fixture
def source(tmp_path) -> Path:
    return first_layers(tmp_path / "source", 1, NARROW)


def request(tmp_path: Path, source: Path, **changes) -> QuantizeRequest:
    facts = {
        "source": source,
        "out": tmp_path / "out.gguf",
        "goal": SizeTarget(kind="bpw", bpw=4.4),
        "calibration": short_text(tmp_path / "text.txt"),
        "held_out": HELD_OUT,
        "cache_dir": tmp_path / "cache",
        "threads": 1,
        "max_tokens": 2048,
        "probe_tokens": 512,
        "verify_tokens": 1024,
    }
    return QuantizeRequest(**(facts | changes))


def start(job: QuantizeRequest, stop_at: str = "") -> subprocess.Popen:
    command = [sys.executable, "-c", JOB, encode(job).decode(), stop_at, *TYPES]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_at(phase: str, job: QuantizeRequest) -> None:
    """kill -9 of a job in the middle of a phase; waits until its children have noticed."""
    process = start(job, phase)
    assert process.stdout.readline() == "there\n", process.stderr.read()
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(runs(child.pid) for child in children), 120, "the children's notice")


def left(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"source", "text.txt", "cache"}


def digest(folder: Path) -> str:
    return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(folder.iterdir()))).hexdigest()


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_kill_9_at_every_phase_leaves_nothing(tmp_path, source):
    before = digest(source)
    for phase in PHASES:
        kill_at(phase, request(tmp_path, source, threads=2))
        assert left(tmp_path) == set(), phase
        assert digest(source) == before, phase

    made = quantize(request(tmp_path, source, threads=2), ignore, never)

    assert made.shipped == "ours"
    assert not list((tmp_path / "cache").rglob("*.partial"))
    assert left(tmp_path) == {"out.gguf", "out.tessera.json"}


def test_kill_9_of_any_child_is_told_by_name_and_the_next_run_goes_on(tmp_path, source, monkeypatch):
    started = Child.__init__
    victim = ""

    def start_and_kill(self, task, wanted):
        started(self, task, wanted)
        if task == victim:
            os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(Child, "__init__", start_and_kill)
    for victim in PHASES:
        with pytest.raises(ChildDied) as caught:
            quantize(request(tmp_path, source, threads=2), ignore, never)
        assert (caught.value.task, caught.value.exit_code) == (victim, -signal.SIGKILL)
        assert left(tmp_path) == set(), victim
    for victim in ("smooth", ""):
        wanted = request(tmp_path, source, threads=2, tier="max")
        if victim:
            with pytest.raises(ChildDied, match=victim):
                quantize(wanted, ignore, never)
        else:
            assert quantize(wanted, ignore, never).shipped == "ours"


# In the order of a job: each run continues with the measurements of the previous one. A folder is read once, when
# it is converted; a change is detected at the end.
CHANGES = [("text", "moments"), ("text", "errors"), ("text", "alpha"), ("text", "round"), ("source", "round")]


def test_a_source_or_text_that_changes_in_the_middle_is_told_and_nothing_is_kept(tmp_path, source):
    """Measurements of the old file are never mixed with those of the new one."""
    wanted = request(tmp_path, source)
    converted = next(source.glob("*.safetensors"))
    for what, phase in CHANGES:
        path = converted if what == "source" else wanted.calibration
        before, changed = path.read_bytes(), []

        def change(progress, phase=phase, path=path, before=before, changed=changed):
            if progress.phase == phase and not changed:
                changed.append(phase)
                path.write_bytes(before[:-4096])

        with pytest.raises(SourceChanged, match=path.name if what == "text" else source.name):
            quantize(wanted, change, never)
        assert changed, (what, phase)
        assert left(tmp_path) == set(), (what, phase)
        path.write_bytes(before)
    assert quantize(wanted, ignore, never).shipped == "ours"


# In the order of a job: each run continues with the measurements of the previous one.
def test_a_file_that_is_written_to_in_the_middle_leaves_nothing_of_the_other_in_the_cache(tmp_path):
    """Children map the file, so they read the changed weights, though the hash was taken before the change."""
    (tmp_path / "undisturbed").mkdir()
    whole = small_file(tmp_path / "undisturbed" / "source.gguf", 1, NARROW)
    assert quantize(request(tmp_path / "undisturbed", whole), ignore, never).shipped == "ours"
    wanted = request(tmp_path, whole)
    before = whole.read_bytes()
    for phase in ("smooth", "moments", "round", "verify"):
        changed = []

        def change(progress, phase=phase, changed=changed):
            if progress.phase == phase and progress.total > 1 and not changed:
                changed.append(phase)
                with whole.open("r+b") as file:
                    for tensor in read_gguf(whole).tensors:
                        if tensor.ggml_type.name == "F16":
                            file.seek(tensor.offset)
                            file.write(bytes(tensor.nbytes))

        with pytest.raises(SourceChanged, match=whole.name):
            quantize(wanted, change, never)
        assert changed, phase
        assert left(tmp_path) == {"undisturbed"}, phase
        whole.write_bytes(before)
    assert quantize(wanted, ignore, never).shipped == "ours"
    assert digest_of(tmp_path / "out.gguf") == digest_of(tmp_path / "undisturbed" / "out.gguf")


def test_two_jobs_measure_one_source_at_once(tmp_path, source):
    before = digest(source)
    outs = [tmp_path / "one.gguf", tmp_path / "two.gguf"]
    jobs = [start(request(tmp_path, source, out=out, threads=2, verify=False)) for out in outs]
    said = [job.communicate(timeout=280) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    plans = [read_report(out.with_suffix(".tessera.json")).plan.types for out in outs]
    assert plans[0] == plans[1]
    assert digest(source) == before


def test_a_cache_on_a_full_disk(tmp_path, source):
    small = tmp_path / "cache"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk here")
    try:
        with pytest.raises(DiskFull):
            quantize(request(tmp_path, source), ignore, never)
        assert left(tmp_path) == set()
        assert not list(small.rglob("*.partial"))
    finally:
        subprocess.run(["umount", str(small)], check=True)
