"""Stand-ins are files llama.cpp would take for the real ones; results survive what may happen to their file."""

import asyncio
import json
import subprocess
import sys

import pytest

from engine.bench import shapes, standin
from engine.bench.results import Results, to_csv
from engine.bench.run import bench
from engine.bench.types import Concurrency, Point, Report, Spread
from engine.errors import InputFault
from engine.runner.protocol import LoadSettings
from quantize.gguf_file import read_gguf


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
    size = name.rsplit("-", 1)[1]
    said = float(size.removesuffix("b")) if size.endswith("b") else float(size.removesuffix("m")) / 1000
    _, slots = standin.spec_of_shape(name, "Q4_K_M")
    billions = sum(_count(slot.shape) for slot in slots) / 1e9
    assert billions == pytest.approx(said, rel=0.27)
    assert len({slot.qtype for slot in slots}) > 2


def _count(shape):
    total = 1
    for extent in shape:
        total *= extent
    return total


def test_unknown_shapes_and_mixes_say_what_is_known():
    with pytest.raises(InputFault, match="qwen3-8b"):
        standin.spec_of_shape("gpt-9", "Q4_K_M")
    with pytest.raises(InputFault, match="Q4_K_M"):
        standin.spec_of_shape("qwen3-8b", "Q99")


def test_a_stand_in_of_a_file_has_its_tensors_and_loads(bundled_model, tmp_path):
    out = tmp_path / "standin.gguf"
    seen = []
    standin.write_in_child(out, like=bundled_model, on_progress=lambda d, t: seen.append((d, t)))
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
    assert any("32 tokens" in s for s in steps)


def test_a_stopped_stand_in_leaves_no_file(bundled_model, tmp_path):
    out = tmp_path / "standin.gguf"

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        standin.write_in_child(out, like=bundled_model, on_progress=stop)
    assert not out.exists()


def test_a_full_disk_is_told(tmp_path, bundled_model):
    with pytest.raises(standin.StandInFailed):
        standin.write_in_child(tmp_path / "no" / "folder.gguf", like=bundled_model, on_progress=lambda d, t: None)


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
    rows = to_csv(report()).splitlines()
    assert [r.split(",")[5] for r in rows[1:]] == ["pp64", "tg32@d64", "tg32 x4"]


def tessera(*arguments):
    return subprocess.run([sys.executable, "-m", "app", "bench", *arguments], capture_output=True, text=True)


def test_the_command_prints_one_json_object():
    done = tessera("spark", "--lengths", "16", "--repeats", "1", "--parallel", "1", "--json", "--threads", "1")
    assert json.loads(done.stdout)["points"][0]["length"] == 16


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Give a MODEL"),
        (("spark", "--shape", "qwen3-8b"), "Give a MODEL"),
        (("--shape", "gpt-9"), "gpt-9"),
        (("no-such-model",), "no-such-model"),
        (("spark", "--lengths", "0"), "out of range"),
        (("spark", "--lengths", "a"), "list of numbers"),
    ],
)
def test_bad_wishes_are_explained(arguments, says):
    done = tessera(*arguments)
    assert done.returncode in (2, 3, 4)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
