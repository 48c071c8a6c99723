"""`tessera fit` as a person and as a program see it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.format import size
from tests.machines import machines

ROOT = Path(__file__).resolve().parents[3]
SPARK = str(ROOT / "assets/models/spark-f16.gguf")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "home"))


@pytest.fixture
def small_machine(tmp_path):
    recording = machines()["vm-firecracker"]
    recording["files"]["/proc/meminfo"] = f"MemTotal: {2 << 20} kB\nMemAvailable: {620 << 10} kB\n"
    path = tmp_path / "small.json"
    path.write_text(json.dumps(recording), encoding="utf-8")
    return str(path)


def run(*arguments):
    return CliRunner().invoke(cli, ["fit", *arguments])


def test_the_bundled_model_fits_and_every_part_is_shown():
    shown = run(SPARK)
    assert shown.exit_code == 0
    for word in ("fits on", "weights", "kv", "compute", "overhead", "Largest context that fits: 1024"):
        assert word in shown.output


def test_by_name_as_json():
    told = json.loads(run("spark-f16", "--ctx", "512", "--kv", "q8_0", "--parallel", "2", "--json").output)
    assert told["fits"] is True
    assert told["need"]["n_ctx"] == 512
    assert told["need"]["type_k"] == "q8_0"
    assert told["placement"]["settings"]["n_parallel"] == 2
    assert told["needed_bytes"]["cpu"] == sum(p["num_bytes"] for p in told["need"]["parts"])


def test_what_does_not_fit_ends_with_ways_out(small_machine):
    shown = run(SPARK, "--ctx", "65536", "--from", small_machine)
    assert shown.exit_code == 1
    assert "does not fit" in shown.output
    assert "To make it fit" in shown.output
    assert "--ctx" in shown.output


@pytest.mark.parametrize("arguments", [["none-such"], [SPARK, "--kv", "q9"], [SPARK, "--ctx", "0"]])
def test_mistakes_are_one_sentence(arguments):
    shown = run(*arguments)
    assert shown.exit_code not in {0, None}
    assert "Traceback" not in shown.output


def test_a_broken_file_is_refused(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 64)
    shown = run(str(broken))
    assert shown.exit_code != 0


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [(None, "unknown"), (0, "0 B"), (2048, "2 KiB"), (7 << 20, "7.0 MiB"), (200 << 30, "200 GiB")],
)
def test_sizes(num_bytes, words):
    assert size(num_bytes) == words
