"""Every possible fault while a file is made: the source stays unchanged, and no unfinished file remains."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from devices.errors import Cancelled
from quantize.errors import (
    BadFile,
    BadWeights,
    BudgetTooSmall,
    DiskFull,
    IncompleteFile,
    InvalidOption,
    NotWritable,
)
from quantize.files import output_file
from quantize.files.gguf_file import read_gguf
from quantize.files.provenance import KEY, read_provenance, report_path
from quantize.job.execute import quantize
from quantize.job.request import QuantizeRequest
from quantize.measure.verify import NotFinite, verify
from quantize.measurements import VerifyRequest, encode
from quantize.native.eval_context import LoadFailed
from quantize.types import CALIBRATION, HELD_OUT, SizeTarget, TypeOverride
from tests.support.models.measured_model import measured_types
from tests.support.models.small_folder import changed_copy, small_file
from tests.support.reports import read_report
from tests.support.servers import runs, wait_for

pytestmark = pytest.mark.usefixtures("kept")
SPARK = Path("assets/models/spark-f16.gguf")
SPARK_HF = Path("tests/data/spark-hf")
BUDGET = SizeTarget(kind="budget", limit_bytes=5_000_000)
QUICK = SizeTarget(kind="mix", mix="Q8_0")  # rounding takes no time


def request(tmp_path: Path, **changes) -> QuantizeRequest:
    facts = {
        "source": SPARK,
        "out": tmp_path / "out.gguf",
        "goal": QUICK,
        "calibration": CALIBRATION,
        "held_out": HELD_OUT,
        "cache_dir": tmp_path / "cache",
        "tier": "instant",
    }
    return QuantizeRequest(**(facts | changes))


def run(tmp_path: Path, **changes):
    return quantize(request(tmp_path, **changes), lambda _p: None, lambda: False)


def left(folder: Path) -> set[str]:
    """Files that a job created in the folder, except the cache."""
    return {p.name for p in folder.iterdir() if p.name not in {"cache", "source.gguf", "source"}}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Two layers, for tests that do not change their source."""
    return small_file(tmp_path_factory.mktemp("small") / "source.gguf", 2)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copy(SPARK, tmp_path / "source.gguf"))


def test_a_file_within_the_budget_that_explains_itself(tmp_path):
    source = small_file(tmp_path / "source.gguf", 2)
    before = digest(source)
    seen = []
    goal = SizeTarget(kind="budget", limit_bytes=1_200_000)
    # Without a comparison: of random weights llama.cpp's preset may lose less, and is the result then.
    asked = request(tmp_path, source=source, goal=goal, verify=False)
    report = quantize(asked, seen.append, lambda: False)
    out = tmp_path / "out.gguf"
    assert out.stat().st_size == report.file_bytes <= 1_200_000
    file = read_gguf(out)
    assert {t.name: t.ggml_type.name for t in file.tensors} == report.plan.types
    said = read_provenance(str(file.metadata[KEY]))
    assert said is not None
    assert (said.source_sha256, said.tier) == (before, "instant")
    assert read_report(report_path(out)) == report
    assert left(tmp_path) == {"out.gguf", "out.tessera.json"}
    assert digest(source) == before
    assert {"hash", "plan", "write"} <= {p.phase for p in seen}
    assert "first" not in report.seconds, "nothing is measured, so the file is written once"
    # A fast machine skips most names; the first and the last are always reported.
    written = [p for p in seen if p.phase == "write" and p.total > 0]
    assert {p.detail for p in written if p.detail} <= {t.name for t in file.tensors}
    assert file.tensors[0].name in {p.detail for p in written}
    assert written[-1].done == written[-1].total


def test_a_hugging_face_folder_in_one_go(tmp_path):
    report = run(tmp_path, source=SPARK_HF)
    assert report.plan.types["blk.0.attn_q.weight"] == "Q8_0"
    assert left(tmp_path) == {"out.gguf", "out.tessera.json"}


def test_a_file_is_written_into_the_folder_of_its_source(tmp_path):
    folder = Path(shutil.copytree(SPARK_HF, tmp_path / "source"))
    out = folder / "out.gguf"
    run(tmp_path, source=folder, out=out)
    assert {p.name for p in folder.iterdir()} - {p.name for p in SPARK_HF.iterdir()} == {
        out.name,
        "out.tessera.json",
    }
    run(tmp_path, source=folder, out=out, overwrite=True)
    with pytest.raises(InvalidOption, match=r"must end in \.gguf"):
        run(tmp_path, source=folder, out=folder / "model.safetensors", overwrite=True)


def test_a_plan_alone_writes_nothing(tmp_path, small):
    report = run(tmp_path, plan_only=True, source=small)
    assert report.shipped == "nothing"
    assert report.forecast.seconds > 0
    assert left(tmp_path) == set()


def test_a_plan_changes_nothing_where_its_file_would_lie(tmp_path, small):
    """A plan creates no folder, deletes no leftovers of an ended job, and keeps the folder's time."""
    run(tmp_path, plan_only=True, source=small, out=tmp_path / "models" / "local" / "out.gguf")
    assert not (tmp_path / "models").exists()
    old = tmp_path / ".other.gguf.999999999.ours.partial"
    old.write_bytes(b"x")
    before = tmp_path.stat().st_mtime_ns
    run(tmp_path, plan_only=True, source=small, out=tmp_path / "out.gguf")
    assert old.exists()
    assert tmp_path.stat().st_mtime_ns == before
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="not a folder"):
        run(tmp_path, plan_only=True, source=small, out=tmp_path / "file" / "local" / "out.gguf")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"goal": SizeTarget(kind="budget", limit_bytes=100_000)}, BudgetTooSmall, "smallest"),
        ({"goal": SizeTarget(kind="mix", mix="Q9_K")}, InvalidOption, "Q9_K"),
        ({"goal": SizeTarget(kind="mix", mix="IQ2_XS")}, InvalidOption, "importance matrix"),
        ({"locks": (TypeOverride("nothing_like_it", "Q8_0"),)}, InvalidOption, "nothing_like_it"),
        ({"rounding": "gptq"}, InvalidOption, "measures nothing"),
    ],
)
def test_wishes_that_cannot_be(tmp_path, small, changes, error, words):
    with pytest.raises(error, match=words):
        run(tmp_path, source=small, **changes)
    assert left(tmp_path) == set()


@pytest.mark.parametrize("tier", ["balanced", "max"])
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"goal": SizeTarget(kind="budget", limit_bytes=100_000)}, BudgetTooSmall),
        ({"goal": SizeTarget(kind="bpw", bpw=1.0)}, BudgetTooSmall),
        ({"locks": (TypeOverride("nothing_like_it", "Q8_0"),)}, InvalidOption),
    ],
)
def test_what_cannot_be_is_refused_before_measuring(tmp_path, small, tier, changes, error):
    asked, phases = request(tmp_path, source=small, tier=tier, **changes), []
    with pytest.raises(error):
        quantize(asked, lambda at: phases.append(at.phase), lambda: False)
    assert "measure" not in phases
    assert left(tmp_path) == set()


def test_a_truncated_source(tmp_path, source):
    source.write_bytes(source.read_bytes()[:-5000])
    with pytest.raises(IncompleteFile):
        run(tmp_path, source=source)
    assert left(tmp_path) == set()


def poison(source: Path, name: str, value: bytes) -> None:
    tensor = next(t for t in read_gguf(source).tensors if t.name == name)
    with source.open("r+b") as file:
        file.seek(tensor.offset + 64)
        file.write(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("blk.2.ffn_up.weight", b"\x00\x7e"),  # NaN in F16
        ("blk.2.ffn_up.weight", b"\x00\x7c"),  # infinity
        ("output_norm.weight", b"\x00\x00\xc0\x7f"),  # NaN in a tensor that is only copied
    ],
)
def test_values_that_are_not_finite_name_the_tensor(tmp_path, source, name, value):
    poison(source, name, value)
    before = digest(source)
    with pytest.raises((BadFile, BadWeights), match=name):
        run(tmp_path, source=source)
    assert left(tmp_path) == set()
    assert digest(source) == before


@pytest.mark.parametrize("damaged", ["reference", "files"])
def test_a_comparison_with_a_file_that_computes_no_numbers_names_it(tmp_path, source, damaged):
    poison(source, "output_norm.weight", b"\x00\x00\xc0\x7f")
    given = {"reference": SPARK, "files": SPARK, damaged: source}
    files = (SPARK, given["files"])
    asked = VerifyRequest(reference=given["reference"], files=files, text=HELD_OUT, max_tokens=1024)
    with pytest.raises(NotFinite, match=source.name):
        verify(asked, lambda _p: None, lambda: False)


def test_a_folder_without_a_tokenizer(tmp_path):
    folder = Path(shutil.copytree(SPARK_HF, tmp_path / "source"))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadFile, match="tokenizer"):
        run(tmp_path, source=folder)
    assert left(tmp_path) == set()


def test_a_quantized_source_is_refused_below_q8(tmp_path):
    run(tmp_path, source=small_file(tmp_path / "source.gguf", 2), goal=SizeTarget(kind="mix", mix="Q4_0"))
    small = (tmp_path / "out.gguf").rename(tmp_path / "source.gguf")
    (tmp_path / "out.tessera.json").unlink()
    goal = SizeTarget(kind="mix", mix="Q2_K")
    with pytest.raises(InvalidOption, match="already quantized"):
        run(tmp_path, source=small, goal=goal)
    assert left(tmp_path) == set()
    report = run(tmp_path, source=small, goal=goal, force=True)
    assert "already quantized" in report.warnings[0]


def test_an_existing_file_is_never_replaced_unasked(tmp_path, small):
    out = tmp_path / "out.gguf"
    out.write_text("precious")
    with pytest.raises(InvalidOption, match="exists"):
        run(tmp_path, source=small)
    assert out.read_text() == "precious"
    run(tmp_path, source=small, overwrite=True)
    assert out.stat().st_size > 1_000_000


def test_the_source_is_not_overwritten_by_its_own_result(tmp_path, source):
    before = digest(source)
    with pytest.raises(InvalidOption, match="SOURCE"):
        run(tmp_path, source=source, out=source, overwrite=True)
    assert digest(source) == before


@pytest.mark.parametrize("tier", ["instant", "balanced"])
def test_a_source_without_one_of_its_weights_is_refused_before_anything_is_written(tmp_path, tier):
    """Also in tier instant without a comparison, where no step evaluates the model."""
    whole = small_file(tmp_path / "whole.gguf", 2)
    lost = "blk.1.ffn_up.weight"
    source = changed_copy(whole, tmp_path / "source.gguf", lambda _name, values: values, without=(lost,))
    seen = []
    asked = request(tmp_path, source=source, tier=tier, verify=False)
    with pytest.raises(LoadFailed, match=re.escape(lost)):
        quantize(asked, seen.append, lambda: False)
    assert {p.phase for p in seen}.isdisjoint({"first", "write"})
    assert left(tmp_path) == {"whole", "whole.gguf"}


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_target(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    try:
        with pytest.raises(NotWritable):
            run(tmp_path, out=locked / "out.gguf")
    finally:
        locked.chmod(0o700)


def test_targets_that_cannot_be_written(tmp_path):
    with pytest.raises(NotWritable, match="no such folder"):
        run(tmp_path, out=tmp_path / "missing" / "out.gguf")
    with pytest.raises(NotWritable):
        run(tmp_path, out=Path("/proc/out.gguf"))


def test_a_disk_too_small_is_noticed_before_writing(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(output_file.shutil, "disk_usage", lambda _p: usage._replace(free=3_000_000))
    with pytest.raises(DiskFull) as caught:
        run(tmp_path)
    assert caught.value.free_bytes == 3_000_000
    assert caught.value.needed_bytes > 8_900_000
    assert left(tmp_path) == set()


def test_a_disk_that_fills_up_while_writing(tmp_path, monkeypatch):
    small = tmp_path / "small"
    small.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("no right to mount a small disk here")
    try:
        monkeypatch.setattr(output_file.Output, "require_disk", lambda *_: None)
        with pytest.raises(DiskFull) as caught:
            run(tmp_path, out=small / "out.gguf")
        assert left(small) == set()
        assert caught.value.path == str(small / "out.gguf")
        assert caught.value.needed_bytes > 1_000_000 > caught.value.free_bytes
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_cancelling_leaves_nothing(tmp_path, source):
    stop = []
    with pytest.raises(Cancelled):
        quantize(
            request(tmp_path, source=source, goal=BUDGET),
            lambda p: stop.append(p) if p.phase == "write" and p.done > 0 else None,
            lambda: bool(stop),
        )
    assert left(tmp_path) == set()


@pytest.mark.parametrize("lacks", ["unmeasured", "uncompared"])
def test_a_stopped_job_keeps_its_best_file_so_far(tmp_path, lacks):
    """The first version is written before any measurement; the final file replaces it."""
    source, usable = small_file(tmp_path / "source.gguf", 2), [""]
    limits = {"max_tokens": 1024, "probe_tokens": 256, "goal": SizeTarget(kind="budget", limit_bytes=1_200_000)}
    job = request(tmp_path, source=source, tier="balanced", rounding="stock", verify=True, **limits)

    def watch(progress):
        usable.append(progress.usable)

    with measured_types("Q4_K", "Q5_K", "Q8_0"):
        report = quantize(job, watch, lambda: usable[-1] == lacks, keeps=lambda: True)
    assert report.stopped == lacks
    assert report.ours is None
    assert left(tmp_path) == {"out.gguf", "out.tessera.json"}
    file = read_gguf(tmp_path / "out.gguf")
    assert {t.name: t.ggml_type.name for t in file.tensors} == report.plan.types
    assert file.file_bytes == report.file_bytes <= 1_200_000
    said = read_provenance(str(file.metadata[KEY]))
    assert said is not None
    assert said.tier == ("instant" if lacks == "unmeasured" else "balanced")
    assert bool(report.plan.evidence.sensitivity_sha256) == (lacks == "uncompared")
    assert read_report(report_path(tmp_path / "out.gguf")) == report


def test_a_job_stopped_without_a_file_or_without_keeping_it_leaves_nothing(tmp_path):
    source, usable = small_file(tmp_path / "source.gguf", 2), [""]
    job = request(tmp_path, source=source, tier="balanced", goal=SizeTarget(kind="budget", limit_bytes=1_200_000))
    with pytest.raises(Cancelled):
        quantize(job, lambda _: None, lambda: True, keeps=lambda: True)
    with pytest.raises(Cancelled):
        quantize(job, lambda p: usable.append(p.usable), lambda: bool(usable[-1]))
    assert left(tmp_path) == set()


JOB = """
import sys
from pathlib import Path
from quantize.measurements import decode
from quantize.job.execute import quantize
from quantize.job.request import QuantizeRequest
def tell(progress):
    print(progress.phase, progress.detail, flush=True)
quantize(decode(sys.argv[1], QuantizeRequest), tell, lambda: False)
"""


def start(job: QuantizeRequest) -> subprocess.Popen:
    command = [sys.executable, "-c", JOB, encode(job).decode()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def reach(process: subprocess.Popen, phase: str) -> None:
    for line in process.stdout:
        if line.startswith(phase):
            return
    raise AssertionError(process.stderr.read())


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("phase", ["convert", "write"])  # test_quantize_killed.py has the steps in between
def test_kill_9_of_the_job_leaves_no_file_and_no_process(tmp_path, phase):
    source = Path(shutil.copytree(SPARK_HF, tmp_path / "source"))
    before = digest(source / "model.safetensors")
    process = start(request(tmp_path, source=source, goal=BUDGET))
    reach(process, phase)
    children = [c.pid for c in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(map(runs, children)), what="the children's end")
    assert left(tmp_path) == set()
    assert digest(source / "model.safetensors") == before


def test_files_of_dead_jobs_are_swept(tmp_path, small):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    old = tmp_path / f".other.gguf.{dead.pid}.ours.partial"
    old.write_bytes(b"x")
    kept = tmp_path / f".other.gguf.{os.getppid()}.ours.partial"
    kept.write_bytes(b"x")
    run(tmp_path, source=small)
    assert left(tmp_path) == {kept.name, "out.gguf", "out.tessera.json"}


def test_two_jobs_on_one_source_and_one_target(tmp_path, small):
    before = digest(small)
    jobs = [start(request(tmp_path, source=small, cache_dir=tmp_path / "cache")) for _ in range(2)]
    outcomes = [job.communicate(timeout=110) for job in jobs]
    codes = sorted(job.returncode for job in jobs)
    assert codes in ([0, 0], [0, 1]), outcomes
    if codes == [0, 1]:
        assert any("InvalidOption" in errors for _, errors in outcomes)
    assert left(tmp_path) == {"out.gguf", "out.tessera.json"}
    assert read_report(tmp_path / "out.tessera.json").file_bytes == (tmp_path / "out.gguf").stat().st_size
    assert digest(small) == before


def test_the_command_prints_the_report_as_json(tmp_path):
    out = tmp_path / "cli.gguf"
    source = small_file(tmp_path / "source.gguf", 2)
    command = [sys.executable, "-m", "app", "quantize", str(source), str(out)]
    options = ["--budget", "1200000B", "--tier", "instant", "--threads", "1", "--no-verify", "--json"]
    env = os.environ | {"TESSERA_HOME": str(tmp_path / "home")}
    done = subprocess.run(command + options, capture_output=True, text=True, timeout=110, env=env, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["file_bytes"] == out.stat().st_size <= 1_200_000
    again = subprocess.run(command + options, capture_output=True, text=True, timeout=110, env=env, check=False)
    assert again.returncode == 3
    assert "exists" in again.stderr
