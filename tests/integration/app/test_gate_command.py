"""`tessera quantize --gate` as used by people and by programs: through the server, with exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.models.golden_tasks import golden_tasks
from tests.support.servers import RunningServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[3]
SPARK = ROOT / "assets/models/spark-f16.gguf"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home whose server all commands use."""
    running = RunningServer(tmp_path_factory.mktemp("home"))
    yield running.home
    running.stop()


def tessera(home, *arguments):
    env = {**os.environ, "TESSERA_HOME": str(home)}
    command = [sys.executable, "-m", "app", "quantize", str(SPARK), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=580)


def test_a_veto_ends_with_one_and_its_numbers_and_leaves_no_file(home, tmp_path):
    out = tmp_path / "made"
    out.mkdir()
    tasks = golden_tasks(tmp_path, SPARK)
    wanted = (out / "small.gguf", "--budget", "3100000B", "--tier", "instant", "--gate", tasks, "--json")
    done = tessera(home, *wanted)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    (check,) = report["gate"]["checks"]
    assert (report["shipped"], report["out"], check["vetoed"], check["before"]) == ("nothing", None, True, 16)
    assert list(out.iterdir()) == []


def test_what_a_gate_will_take_is_told_before(home):
    plain = json.loads(tessera(home, "--bpw", "4.5", "--plan-only", "--json").stdout)
    gated = json.loads(tessera(home, "--bpw", "4.5", "--plan-only", "--json", "--gate", "certify").stdout)
    assert "gate" not in plain["forecast"]["phases"]
    assert gated["forecast"]["phases"]["gate"] > 0
    # Two processes measure the machine's speed at different times, so their totals cannot be compared.
    for told in (plain["forecast"], gated["forecast"]):
        assert told["seconds"] == pytest.approx(sum(told["phases"].values()))
    assert gated["forecast"]["phases"].keys() - plain["forecast"]["phases"].keys() == {"gate"}


def test_a_wrong_file_of_tasks_is_refused_with_its_line(home, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x", "answer": "y"}\n{"prompt": "x"}\n', "utf-8")
    done = tessera(home, tmp_path / "out.gguf", "--bpw", "4.5", "--gate", bad)
    assert done.returncode == 3
    assert "bad.jsonl, line 2: give either an answer or a regex." in done.stderr
    assert "Traceback" not in done.stderr
    absent = tessera(home, "--bpw", "4.5", "--gate", "cretify")
    assert absent.returncode == 2
    assert "neither certify nor evaluate nor a file" in absent.stderr
