"""llama.cpp accepts dummy-weight files as real models; results survive damage to their file."""

import asyncio
import csv
import io
import json
import re
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import msgspec
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from engine.core.errors import InputFault
from engine.job_kinds.bench import dummy_model, shapes, svg
from engine.job_kinds.bench.run import bench
from engine.job_kinds.measure.target import Subject
from engine.library.hub import header_cache
from engine.message_catalog import sentence
from engine.placement.measurements import Concurrency, Point, Report, Spread
from engine.placement.placer import read_shape
from engine.placement.results import Results, shape_key, to_csv
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import read_gguf


def report(**changes):
    s = Spread(median=2.0, low=1.0, high=3.0)
    values = {
        "model": "m",
        "description": "d",
        "size_bytes": 1,
        "n_params": 2,
        "backend": "cpu",
        "machine": "x",
        "threads": 2,
        "type_k": "f16",
        "type_v": "f16",
        "load_s": 1.0,
        "rss_bytes": 5,
        "points": (Point(length=64, prefill_tok_s=s, decode_tok_s=s, ttft_s=s),),
        "concurrency": (Concurrency(parallel=4, total_tok_s=s),),
        "drift": 1.0,
        "stand_in": False,
        "started_at": 1.0,
    }
    return Report(**{**values, **changes})


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_every_shape_has_the_parameters_its_name_says(name):
    size = next(part for part in name.split("-") if re.fullmatch(r"[\d.]+[bm]", part))
    said = float(size.removesuffix("b")) if size.endswith("b") else float(size.removesuffix("m")) / 1000
    _, slots = dummy_model.spec_of_shape(name, "Q4_K_M")
    billions = sum(_count(slot.shape) for slot in slots) / 1e9
    assert billions == pytest.approx(said, rel=0.27)
    assert len({slot.qtype for slot in slots}) > 2
    assert {slot.qtype.name for slot in slots if slot.name.endswith(shapes.ROUTER)} <= {"F32"}


def _count(shape):
    total = 1
    for extent in shape:
        total *= extent
    return total


def test_unknown_shapes_and_mixes_say_what_is_known():
    with pytest.raises(InputFault, match="qwen3-8b"):
        dummy_model.spec_of_shape("gpt-9", "Q4_K_M")
    with pytest.raises(InputFault, match="Q4_K_M"):
        dummy_model.spec_of_shape("qwen3-8b", "Q99")


@pytest.mark.process
def test_a_stand_in_of_a_file_has_its_tensors_and_loads(bundled_model, tmp_path):
    out = tmp_path / "standin.gguf"
    seen = []
    dummy_model.write_in_child(out, like=bundled_model, on_progress=lambda d, t: seen.append((d, t)))
    real, made = read_gguf(bundled_model), read_gguf(out)
    assert [(t.name, t.shape, t.ggml_type) for t in made.tensors] == [
        (t.name, t.shape, t.ggml_type) for t in real.tensors
    ]
    assert out.stat().st_size == pytest.approx(bundled_model.stat().st_size, rel=0.001)
    assert out.read_bytes()[-100_000:] != bundled_model.read_bytes()[-100_000:]
    assert seen[-1][0] == seen[-1][1]
    steps = []
    found = asyncio.run(
        bench(
            LoadSettings(path=str(out), n_threads=1),
            model="x",
            lengths=(32,),
            parallel=(1, 2),
            repeats=2,
            stand_in=True,
            step=steps.append,
        )
    )
    assert found.points[0].length == 32
    assert found.points[0].decode_tok_s.low > 0
    assert found.concurrency[0].parallel == 2
    assert found.rss_bytes > bundled_model.stat().st_size / 2
    assert any("32 tokens" in sentence(s) for s in steps)


@pytest.mark.process
def test_a_stopped_stand_in_leaves_no_file(bundled_model, tmp_path):
    out = tmp_path / "standin.gguf"

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dummy_model.write_in_child(out, like=bundled_model, on_progress=stop)
    assert not out.exists()


@pytest.mark.process
def test_a_full_disk_is_told(tmp_path, bundled_model):
    with pytest.raises(dummy_model.StandInFailed):
        dummy_model.write_in_child(
            tmp_path / "no" / "folder.gguf", like=bundled_model, on_progress=lambda d, t: None
        )


def test_results_are_kept_and_compared(tmp_path):
    results = Results(tmp_path / "state" / "bench.jsonl")
    assert results.all() == []
    results.add(report(started_at=1.0))
    results.add(report(started_at=2.0, threads=1))
    newest = report(started_at=3.0)
    assert results.before(newest).started_at == 1.0
    assert results.before(report(started_at=3.0, model="other")) is None


def test_a_damaged_line_costs_only_itself(tmp_path):
    path = tmp_path / "bench.jsonl"
    results = Results(path)
    results.add(report())
    with path.open("ab") as file:
        file.write(b'{"half": \n\xff\xfe\n')
    results.add(report(started_at=2.0))
    assert len(results.all()) == 2


def test_csv_has_a_row_for_every_figure():
    rows = list(csv.DictReader(io.StringIO(to_csv(report(model='a "name", with a comma')))))
    assert [r["test"] for r in rows] == ["pp64", "tg32 @ d64", "tg32 x4"]
    assert [(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows[:2]] == [("64", "0", "0"), ("0", "32", "64")]
    assert {r["model_filename"] for r in rows} == {'a "name", with a comma'}
    assert rows[0]["avg_ts"] == "2.00"


def test_a_picture_is_an_image_with_every_length_and_escaped_names():
    drawn = svg.draw([report(model="<a> & b"), report(points=())])
    root = ET.fromstring(drawn)
    words = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "64" in words
    assert any("<a> & b" in w for w in words)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2


def test_the_newest_result_of_a_shape_is_found_and_the_real_file_wins(tmp_path):
    results = Results(tmp_path / "bench.jsonl")
    assert results.newest("m", "s") is None
    results.add(report(machine_key="m", shape_key="s", started_at=1.0))
    results.add(report(machine_key="m", shape_key="s", started_at=5.0, stand_in=True))
    assert results.newest("m", "s").started_at == 1.0
    results.add(report(machine_key="m", shape_key="s", started_at=3.0))
    assert results.newest("m", "s").started_at == 3.0
    assert results.newest("other", "s") is None


def test_results_of_an_earlier_version_are_still_read(tmp_path):
    old = msgspec.to_builtins(report())
    for name in ("shape_key", "machine_key", "tokens", "n_batch", "n_ubatch", "flash_attn", "use_mmap"):
        del old[name]
    (tmp_path / "bench.jsonl").write_text(json.dumps(old) + "\n")
    assert Results(tmp_path / "bench.jsonl").all()[0].tokens == 32


@pytest.mark.process
def test_a_stand_in_of_a_file_that_is_not_here(bundled_model, tmp_path):
    """Only the cached header is known: the tensors are the file's, the vocabulary is a dummy of the same size."""
    real = read_gguf(bundled_model)
    header_cache.keep(tmp_path, "kept", real)
    _, slots = dummy_model.spec_of_header(tmp_path / "kept.header")
    assert [(s.name, s.shape, s.qtype) for s in slots] == [(t.name, t.shape, t.ggml_type) for t in real.tensors]
    out = tmp_path / "made.gguf"
    dummy_model.write_in_child(out, header=tmp_path / "kept.header", on_progress=lambda d, t: None)
    made = read_gguf(out)
    assert shape_key(read_shape(str(out))) == shape_key(read_shape(str(bundled_model)))
    assert made.entries["tokenizer.ggml.tokens"].count == real.entries["tokenizer.ggml.tokens"].count


@pytest.mark.parametrize("content", [b"", b"\x93", b"\xff" * 100])
def test_a_kept_header_that_cannot_be_read_is_refused(tmp_path, content):
    path = tmp_path / "bad.header"
    path.write_bytes(content)
    with pytest.raises(InputFault):
        dummy_model.spec_of_header(path)


def test_a_stand_in_never_fills_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(dummy_model.shutil, "disk_usage", lambda _: SimpleNamespace(free=2 << 30))
    with pytest.raises(SystemExit, match="free"):
        dummy_model.write(tmp_path / "x.gguf", *dummy_model.spec_of_shape("qwen3-8b", "Q4_K_M"))
    assert not (tmp_path / "x.gguf").exists()


def test_every_matrix_in_one_type():
    _, slots = dummy_model.spec_of_dimensions("probe", shapes.SHAPES["qwen3-0.6b"], "IQ3_S", uniform=True)
    assert {s.qtype.name for s in slots if len(s.shape) > 1} == {"IQ3_S"}


@pytest.mark.parametrize("given", [{}, {"model": "a", "shape": "b"}, {"like": "a", "hub": "b"}])
def test_exactly_one_thing_is_measured(given):
    with pytest.raises(InputFault, match="exactly one"):
        Subject(**given).check()


def tessera(*arguments):
    return CliRunner().invoke(cli, ["bench", *arguments])


@pytest.mark.process
def test_the_command_prints_one_json_object():
    done = tessera("spark", "--lengths", "16", "--repeats", "1", "--parallel", "1", "--json", "--threads", "1")
    assert json.loads(done.stdout)["points"][0]["length"] == 16


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Name a MODEL"),
        (("spark", "--shape", "qwen3-8b"), "Name a MODEL"),
        (("spark", "--lengths", "0"), "out of range"),
        (("spark", "--lengths", "a"), "list of numbers"),
    ],
)
def test_bad_wishes_are_explained(arguments, says):
    done = tessera(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr


@pytest.mark.process
def test_a_job_that_fails_is_explained():
    command = [sys.executable, "-m", "app", "bench", "no-such-model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (3, 4)
    assert "no-such-model" in done.stderr
    assert "Traceback" not in done.stderr
