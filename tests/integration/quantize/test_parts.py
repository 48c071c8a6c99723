"""Evaluating a part of a model gives exactly the bits of the whole; Hessians and swaps rely on that."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import msgspec
import numpy as np
import pytest

from quantize.child import run_task
from quantize.files.measurement_folder import WorkFolder
from quantize.measure import sensitivity
from quantize.measure.collect_hessians import MomentsRequest
from quantize.measure.hessians import partition
from quantize.measure.run import measure_inputs
from quantize.measure.sensitivity import AlphaRequest, measure_swaps, swaps_file
from tests.support.models.architectures import ARCHITECTURES
from tests.support.models.measured_model import LAYERS, ROOT, ignore, never
from tests.support.models.small_folder import short_text, small_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("kept")]

# Models with more than the residual stream between layers: RWKV 7's first layer is mixed into all others.
WHOLE = {"RWKV 7"}


def test_every_architecture_gives_the_bits_of_the_whole(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests/support/models/parts_of_models.py"), str(tmp_path)]

    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)

    found = json.loads(done.stdout)
    assert len(found) >= len(ARCHITECTURES) - 1
    assert {name: f["wrong"] for name, f in found.items() if f["wrong"]} == {}
    assert {name for name, f in found.items() if f["layers"] != [1, 2, 3]} == WHOLE


@pytest.fixture
def few(request_for, tmp_path):
    """A few tokens through a few layers."""
    source, text = small_file(tmp_path / "source.gguf", 3), short_text(tmp_path / "text.txt")
    return msgspec.structs.replace(
        request_for, source=source, calibration=text, cache_dir=tmp_path / "cache", max_tokens=2048
    )


def moments_of(request):
    folder = WorkFolder.open(request)
    return {g.name: np.array(folder.moments(g)) for g in folder.groups() if g.seen}


def test_moments_of_several_passes_are_those_of_one(few, tmp_path):
    measure_inputs(few, ignore, never)
    once = moments_of(few)
    small = msgspec.structs.replace(few, cache_dir=tmp_path / "small", memory_bytes=2 << 20)
    assert len(partition(WorkFolder.open(few).groups(), small.memory_bytes)) > 2
    measure_inputs(small, ignore, never)
    several = moments_of(small)

    assert several.keys() == once.keys()
    for name, moments in once.items():
        np.testing.assert_array_equal(several[name], moments)
    folder = WorkFolder.open(small).path
    assert not list(folder.glob("scratch-*"))


def test_a_pass_goes_on_from_the_stream_that_the_one_before_left(few, tmp_path):
    """With a zeroed stream the next pass sees zeros: so it reads the stream and skips the earlier layers."""
    run_task("survey", few, ignore, never)
    folder = WorkFolder.open(few)
    first, later = "blk.0.attn_q.weight", "blk.2.ffn_down.weight"
    streams = tmp_path / "streams"
    streams.mkdir()
    task = MomentsRequest(measure=few, groups=(first,), then=later, streams=streams)
    run_task("moments", task, ignore, never)
    kept = sorted(streams.iterdir())
    for path in kept:
        np.save(path, np.zeros_like(np.load(path)))

    run_task("moments", msgspec.structs.replace(task, groups=(later,), then=""), ignore, never)

    assert len(kept) == 4
    assert all(p.name.startswith("2.") for p in kept)
    group = next(g for g in folder.groups() if g.name == later)
    assert not folder.moments(group).any()


def whole(request):
    """The same request with the model evaluated as a whole: with GPU layers, which this build does not support."""
    return msgspec.structs.replace(request, gpu_layers=1)


def test_swaps_are_judged_the_same_from_the_layer_they_change_on(measured, request_for, monkeypatch):
    def judged(request):
        swaps_file(WorkFolder.open(request), "balanced", request.probe_tokens).unlink(missing_ok=True)
        return measure_swaps(AlphaRequest(measure=request), lambda *_: None)

    alone = msgspec.structs.replace(request_for, threads=1, probe_tokens=512)
    in_floats = judged(alone)
    monkeypatch.setattr(sensitivity, "as_floats", lambda source, *_: nullcontext(source))
    found = judged(alone)

    assert found == judged(whole(alone))
    assert len(found.kld) == 4 * LAYERS + 1  # inputs of each layer, and the table
    assert min(found.kld.values()) > 0
    assert in_floats.kld == pytest.approx(found.kld, rel=0.02), "evaluated in F32, which is quicker"
