"""Quality gates with real models and runners: a clearly worse file is discarded, an equal one is kept."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from app.evals.gate_tasks import NAMED_TASKS
from devices.errors import Cancelled
from engine.core.errors import InputFault
from engine.job_kinds.quantize.gate import GateService
from engine.job_kinds.quantize.tasks import TaskSet
from engine.placement.memory_admission import MemoryAdmission
from engine.services import EngineFacade
from quantize.files.gguf_file import read_gguf
from quantize.files.measurement_folder import file_sha256
from quantize.files.provenance import KEY, read_provenance, report_path
from quantize.job.execute import quantize
from quantize.job.gate_run import NOT_THE_SOURCE
from quantize.job.report import summary
from quantize.job.request import QuantizeRequest
from quantize.types import CALIBRATION, HELD_OUT, SizeTarget
from tests.support.models.golden_tasks import golden_tasks
from tests.support.reports import read_report
from tests.support.servers import runs, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("kept")]
ROOT = Path(__file__).resolve().parents[2]
SPARK = ROOT / "assets/models/spark-f16.gguf"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return golden_tasks(tmp_path_factory.mktemp("tasks"), SPARK)


@pytest.fixture
def keeper(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "home"))
    services = EngineFacade()
    yield GateService(services.placer, MemoryAdmission(services.placer), tmp_path / "cache", NAMED_TASKS)
    services.close()


def request(folder, gate, **changes):
    facts = {
        "source": SPARK,
        "out": folder / "out.gguf",
        "goal": SizeTarget(kind="mix", mix="Q8_0"),
        "calibration": CALIBRATION,
        "held_out": HELD_OUT,
        "cache_dir": folder / "cache",
        "tier": "instant",
        "threads": 2,
        "verify_tokens": 1024,
        "gate": gate,
    }
    return QuantizeRequest(**(facts | changes))


def run(keeper, folder, tasks, judge=None, **changes):
    asked = keeper.tasks(str(tasks))
    seen = []
    job = request(folder, asked.task, **changes)
    return quantize(job, seen.append, lambda: False, judge=judge or keeper.judge(asked)), seen


def made(folder):
    return {p.name for p in folder.iterdir()} - {"cache", "home"}


def test_a_file_that_does_as_well_passes_and_says_so(tmp_path, keeper, tasks):
    report, seen = run(keeper, tmp_path, tasks)
    (check,) = report.gate.checks
    assert (report.shipped, check.vetoed, check.before, check.cases) == ("ours", False, 16, 16)
    assert check.after >= 12
    assert made(tmp_path) == {"out.gguf", "out.tessera.json"}
    assert read_report(report_path(tmp_path / "out.gguf")) == report
    told = read_provenance(read_gguf(tmp_path / "out.gguf").metadata[KEY])
    assert told.gate == f"commands.jsonl 16>{check.after}/16"
    assert f"16 of 16 before, {check.after} after" in "\n".join(summary(report))
    gate = [p for p in seen if p.phase == "gate"]
    assert gate[-1].done == gate[-1].total
    assert report.seconds["gate"] > 0
    assert report.forecast.phases["gate"] > 0


def test_a_ruined_file_is_vetoed_and_nothing_is_left(tmp_path, keeper, tasks):
    before = file_sha256(SPARK)
    report, _ = run(keeper, tmp_path, tasks, goal=SizeTarget(kind="budget", limit_bytes=3_100_000))
    (check,) = report.gate.checks
    assert (report.shipped, report.out, report.file_bytes, check.vetoed) == ("nothing", None, None, True)
    assert check.loss.low > 0
    assert check.p_value < 0.05
    assert made(tmp_path) == set()
    assert file_sha256(SPARK) == before
    told = "\n".join(summary(report))
    assert "vetoed" in told
    assert "Allow more bytes" in told


class Without:
    """The real evaluator, but one file gets no right answers, as if only GPTQ were at fault."""

    def __init__(self, judge, kind, *, fits=True):
        self.judge, self.kind, self.fitting = judge, kind, fits
        self.models = []

    def fits(self, model):
        return self.fitting and self.judge.fits(model)

    def ask(self, model, sha256, on_progress, cancelled):
        self.models.append(model)
        found = self.judge.ask(model, sha256, on_progress, cancelled)
        if f".{self.kind}." in model.name:
            return type(found)(tuple(False for _ in found.passed), found.asked)
        return found


def test_the_stock_mix_of_the_same_size_ships_where_it_passes(tmp_path, keeper, tasks):
    judge = Without(keeper.judge(keeper.tasks(str(tasks))), "ours")
    size = SizeTarget(kind="budget", limit_bytes=7_200_000)
    report, _ = run(keeper, tmp_path, tasks, judge, goal=size)
    assert [(c.mix, c.vetoed) for c in report.gate.checks] == [("ours", True), ("stock", False)]
    assert report.shipped == "stock"
    assert report.file_bytes == (tmp_path / "out.gguf").stat().st_size == report.stock.file_bytes
    assert made(tmp_path) == {"out.gguf", "out.tessera.json"}


def test_where_the_source_does_not_fit_one_in_8_bits_stands_for_it(tmp_path, keeper, tasks):
    judge = Without(keeper.judge(keeper.tasks(str(tasks))), "none", fits=False)
    report, _ = run(keeper, tmp_path, tasks, judge, goal=SizeTarget(kind="mix", mix="Q6_K"))
    assert report.gate.reference == NOT_THE_SOURCE
    assert SPARK not in judge.models
    assert judge.models[0].name.endswith(".reference.partial")
    assert NOT_THE_SOURCE in summary(report)
    assert made(tmp_path) == {"out.gguf", "out.tessera.json"}


def test_answers_are_kept_by_the_files_hash(tmp_path, keeper, tasks):
    asked = keeper.tasks(str(tasks))
    judge, digest = keeper.judge(asked), file_sha256(SPARK)
    first = judge.ask(SPARK, digest, lambda _: None, lambda: False)
    again = keeper.judge(asked).ask(SPARK, digest, lambda _: None, lambda: False)
    assert (first.asked, again.asked) == (16, 0)
    assert first.passed == again.passed == (True,) * 16
    kept = next((tmp_path / "cache" / "gate").iterdir())
    raw = kept.read_bytes()
    kept.write_bytes(raw[: len(raw) - 10])  # a power cut in the middle of the last line
    cut = keeper.judge(asked).ask(SPARK, digest, lambda _: None, lambda: False)
    assert (cut.asked, cut.passed) == (1, first.passed)


def runners():
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the process may be gone
            found |= {child} if "engine.runner" in " ".join(child.cmdline()) else set()
    return found


def test_a_cancelled_gate_ends_its_runner_and_leaves_nothing(tmp_path, keeper, tasks):
    others = runners()
    asked = keeper.tasks(str(tasks))
    seen = []
    with pytest.raises(Cancelled):
        quantize(
            request(tmp_path, asked.task),
            seen.append,
            lambda: sum(p.phase == "gate" for p in seen) > 3,
            judge=keeper.judge(asked),
        )
    assert made(tmp_path) == set()
    wait_for(lambda: runners() <= others, what="the end of its runner")


JOB = """
import sys, time
from pathlib import Path
from app.evals.gate_tasks import NAMED_TASKS
from engine.placement.memory_admission import MemoryAdmission
from engine.job_kinds.quantize.gate import GateService
from engine.services import EngineFacade
from quantize.measurements import decode
from quantize.job.execute import quantize
from quantize.job.request import QuantizeRequest
services = EngineFacade()
keeper = GateService(services.placer, MemoryAdmission(services.placer), Path(sys.argv[2]), NAMED_TASKS)
def tell(progress):
    if progress.phase == "gate" and progress.done >= 20:
        print("there", flush=True)
        time.sleep(600)
quantize(decode(sys.argv[1], QuantizeRequest), tell, lambda: False, judge=keeper.judge(keeper.tasks(sys.argv[3])))
"""


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_job_killed_in_the_midst_asks_only_what_is_left(tmp_path, keeper, tasks):
    from quantize.measurements import encode

    asked = keeper.tasks(str(tasks))
    job = encode(request(tmp_path, asked.task)).decode()
    command = [sys.executable, "-c", JOB, job, str(tmp_path / "cache"), str(tasks)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout.readline() == "there\n", process.stderr.read()
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(runs(child.pid) for child in children), what="the children's end")
    assert made(tmp_path) == set()
    judge = Counting(keeper.judge(asked))
    report, _ = run(keeper, tmp_path, tasks, judge)
    assert judge.asked[0] == 0, "the original's answers are there"
    assert judge.asked[1] == 12, "and four of the file's"
    assert report.shipped == "ours"


class Counting:
    def __init__(self, judge):
        self.judge, self.asked = judge, []
        self.fits = judge.fits

    def ask(self, *given):
        found = self.judge.ask(*given)
        self.asked.append(found.asked)
        return found


def test_tool_calls_and_formats_are_asked_through_the_same_road(tmp_path, keeper):
    asked = keeper.tasks("certify")
    loaded = asked.load()
    assert len(loaded) == asked.task.cases >= 30
    chosen = {"weather", "two cities", "person", "forced tool", "use the result", "request at the end"}
    some = tuple(replace(task, query=replace(task.query, max_tokens=24)) for task in loaded if task.name in chosen)
    assert len(some) == len(chosen)
    few = TaskSet(task=asked.task, load=lambda: some)
    found = keeper.judge(few).ask(SPARK, file_sha256(SPARK), lambda _: None, lambda: False)
    assert len(found.passed) == len(some)
    kept = next((tmp_path / "cache" / "gate").iterdir()).read_text("utf-8")
    assert '"error":"The prompt has' in kept, (
        "the case that is longer than its context is a wrong answer, not an end"
    )


def test_a_gate_without_anybody_to_ask_is_refused_before_any_work(tmp_path, keeper, tasks):
    from quantize.errors import InvalidOption

    with pytest.raises(InvalidOption, match="cannot run tasks"):
        quantize(request(tmp_path, keeper.tasks(str(tasks)).task), lambda _: None, lambda: False)
    with pytest.raises(InputFault):
        keeper.tasks(str(tmp_path / "absent.jsonl"))
    assert made(tmp_path) == set()
