"""A task as a quality gate: when a loss is significant, its report, and the order in which files are tested."""

import msgspec
import pytest

from quantize.files.provenance import Provenance, read_provenance
from quantize.intervals import mcnemar
from quantize.job.gate import GateReport, GateTask, cautions, compared, lines, receipt
from quantize.job.gate_run import Answered, ask_gate

TASK = GateTask(name="certify", cases=50, prompt_tokens=100, answer_tokens=100)


def passed(count, total=50):
    return [n < count for n in range(total)]


def test_a_loss_counts_where_its_whole_interval_is_one():
    assert not compared("ours", passed(38), passed(38)).vetoed
    assert not compared("ours", passed(38), passed(36)).vetoed
    assert compared("ours", passed(38), passed(31)).vetoed
    assert not compared("ours", passed(31), passed(38)).vetoed, "better is no reason to refuse"


def test_cases_that_change_both_ways_are_no_loss():
    before = [True] * 25 + [False] * 25
    after = [True] * 18 + [False] * 7 + [True] * 6 + [False] * 19  # 7 lost, 6 won
    found = compared("ours", before, after)
    assert (found.before, found.after, found.lost, found.won) == (25, 24, 7, 6)
    assert not found.vetoed
    assert found.p_value > 0.5


@pytest.mark.parametrize(
    ("lost", "won", "p"),
    [
        (0, 0, 1.0),
        (3, 3, 1.0),
        (7, 0, 2 * 0.5 / 2**7),
        (5, 1, 2 * (1 + 6 / 2) / 2**6),
        (1, 5, 2 * (1 + 6 / 2) / 2**6),
    ],
)
def test_mcnemars_p_is_the_binomial_tail_with_half_of_the_observed(lost, won, p):
    assert mcnemar(lost, won) == pytest.approx(p)


def test_the_numbers_are_said_and_what_to_do():
    lost = GateReport(task="certify", reference="", checks=(compared("ours", passed(38), passed(31)),))
    (line,) = lines(lost)
    assert line == ("task certify: 38 of 50 before, 31 after; likely loss 3 to 23 points (p = 0.008): vetoed")
    (told,) = cautions(lost)
    assert "Allow more bytes" in told
    assert "source is unchanged" in told
    kept = GateReport(task="certify", reference="", checks=(compared("ours", passed(38), passed(37)),))
    assert "no clear loss" in lines(kept)[0]
    assert cautions(kept) == ()
    assert receipt(kept, "ours") == "certify 38>37/50"


def test_a_task_the_original_cannot_do_says_that_it_could_not_veto():
    hopeless = GateReport(task="certify", reference="", checks=(compared("ours", passed(1), passed(0)),))
    assert hopeless.passed == "ours"
    assert "could not veto" in cautions(hopeless)[0]


def test_what_a_file_says_of_its_gate_fits_into_its_place():
    longest = GateReport(
        task="x" * 100, reference="", checks=(compared("stock", passed(500, 500), passed(500, 500)),)
    )
    full = Provenance(
        tool="tessera",
        tier="balanced",
        rounding="gptq",
        smoothed=True,
        goal="123456789012 bytes at 256x1048576 tokens",
        source_sha256="f" * 64,
        imatrix_sha256="f" * 64,
        evidence_sha256="f" * 64,
        plan_sha256="f" * 64,
        predicted_kld=1.2345e-10,
        kld_mean=1.2345e-10,
        kld_p99=1.2345e-10,
        stock_mix="IQ2_XXS",
        stock_kld_mean=1.2345e-10,
        gate=receipt(longest, "stock"),
    )
    assert read_provenance(full.encode().decode()).gate == "x" * 20 + " 500>500/500"


class Scripted:
    """An evaluator whose files pass this many cases, by name."""

    def __init__(self, **passes):
        self.passes = passes
        self.asked = []

    def fits(self, model):
        return model.exists()

    def ask(self, model, sha256, on_progress, cancelled):
        self.asked.append(model.name)
        on_progress(msgspec.convert({"phase": "gate", "done": 50.0, "total": 50.0}, _progress()))
        return Answered(tuple(passed(self.passes[model.name])), 50)


def _progress():
    from quantize.measurements import Progress

    return Progress


@pytest.fixture
def files(tmp_path):
    for name in ("source", "ours", "stock"):
        (tmp_path / name).write_text(name)
    return tmp_path


def run(judge, folder, seen):
    candidates = {"ours": folder / "ours", "stock": folder / "stock"}
    return ask_gate(judge, TASK, (folder / "source", "0", ""), candidates, seen.append, lambda: False)


def test_the_stock_mix_is_asked_only_where_ours_is_vetoed(files):
    seen = []
    judge = Scripted(source=40, ours=40, stock=0)
    gate, whole = run(judge, files, seen)
    assert judge.asked == ["source", "ours"]
    assert (gate.passed, whole) == ("ours", True)
    assert [p.done / p.total for p in seen] == [0.5, 1.0]
    judge = Scripted(source=40, ours=20, stock=39)
    gate, whole = run(judge, files, seen)
    assert judge.asked == ["source", "ours", "stock"]
    assert (gate.passed, whole) == ("stock", False)
    assert [c.vetoed for c in gate.checks] == [True, False]
    gate, _ = run(Scripted(source=40, ours=20, stock=10), files, seen)
    assert gate.passed is None
    assert "this file and the llama.cpp preset" in cautions(gate)[0]
    assert all(p.done <= p.total for p in seen)
