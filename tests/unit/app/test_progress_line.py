"""If the terminal of a progress line is gone, the work continues."""

import errno
import sys

import msgspec
import pytest

from app.cli import bench_job
from app.cli.progress import JobLine, PhaseLine
from app.generation_phase import WAITING
from engine.api.jobs import Progress


class GoneTerminal:
    """Standard error after its terminal was closed."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def flush(self) -> None:
        raise OSError(errno.EIO, "Input/output error")


def quantizing():
    line = JobLine(enabled=True)
    line.update(Progress(phase="measure", done=1, total=0, note="blk.0"))
    line.clear()


def answering():
    line = PhaseLine()
    line.show(WAITING)
    line.clear()


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_job_takes_one_line_of_any_terminal_and_names_its_time(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = Progress(
        phase="measure", done=450, total=1000, note="blk.12.ffn_gate_exps.weight", partial={"usable": "unmeasured"}
    )
    JobLine(enabled=True).update(msgspec.structs.replace(progress, eta_s=5400.0))
    text = capsys.readouterr().err.removeprefix("\r\x1b[2K")
    assert len(text) < columns
    assert text.startswith("measure  45%, 1 h 30 min left, Ctrl-C")
    assert ("blk.12" in text) == (columns > 60)


@pytest.mark.parametrize("show", [quantizing, answering, lambda: bench_job._line("512 tokens")])
def test_no_line_ends_the_work(show, monkeypatch):
    monkeypatch.setattr(sys, "stderr", GoneTerminal())
    show()
