"""Measuring the bundled model with llama.cpp: against an independent computation, after kills, on bad input."""

import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import gguf
import msgspec
import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer

from devices.errors import Cancelled, TesseraError
from quantize.child import Child, ChildDied, run_task
from quantize.errors import BadFile, CannotRead
from quantize.files.imatrix import read_imatrix
from quantize.files.measurement_folder import WorkFolder
from quantize.measure.collect_hessians import MomentsRequest
from quantize.measure.run import measure
from quantize.measure.sensitivity import swaps_file
from quantize.measurements import MeasureRequest
from quantize.native.calibration import TextTooShort
from tests.support.models.measured_model import CALIBRATION, ROOT, ignore, never
from tests.support.servers import runs, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("kept")]


@pytest.fixture(scope="module")
def model(source):
    return {t.name: np.array(t.data) for t in gguf.GGUFReader(source).tensors}


def test_second_moments_equal_those_computed_from_the_weights(request_for, tmp_path, model, source):
    """The first layer's input is a normalized embedding, which tokenizer and numpy compute without llama.cpp."""
    text = CALIBRATION.read_text(encoding="utf-8").replace("<|", "<")  # the same tokens in both parsing modes
    (tmp_path / "plain.txt").write_text(text, encoding="utf-8")
    request = msgspec.structs.replace(
        request_for, calibration=tmp_path / "plain.txt", cache_dir=tmp_path / "cache", max_tokens=4096
    )
    run_task("survey", request, ignore, never)
    first = WorkFolder.open(request).groups()[0]
    run_task("moments", MomentsRequest(measure=request, groups=(first.name,)), ignore, never)
    tokenizer = Tokenizer.from_file(str(source.with_suffix("") / "tokenizer.json"))
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids)
    windows = ids[: len(ids) // 512 * 512].reshape(-1, 512)
    ids = windows[np.linspace(0, len(windows) - 1, 8).round().astype(int)].reshape(-1)  # spread over the whole text
    rows = model["token_embd.weight"].astype(np.float32)[ids]
    rows = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-5) * model["blk.0.attn_norm.weight"]
    expected = rows.T @ rows / len(ids)

    moments = WorkFolder.open(request).moments(first)

    assert first.members == ("blk.0.attn_q.weight", "blk.0.attn_v.weight", "blk.0.attn_k.weight")
    # llama.cpp multiplies partly in F16.
    assert np.abs(moments[0] - expected).max() < 2e-3 * np.abs(expected).max()


def test_lanes_see_what_one_alone_sees(request_for, tmp_path):
    found = []
    for threads in (1, 2):
        request = msgspec.structs.replace(
            request_for, cache_dir=tmp_path / str(threads), max_tokens=2048, threads=threads
        )
        run_task("survey", request, ignore, never)
        groups = WorkFolder.open(request).groups()
        chosen = [g for g in groups if g.name in {"blk.0.attn_q.weight", "blk.2.ffn_down.weight"}]
        run_task("moments", MomentsRequest(measure=request, groups=tuple(g.name for g in chosen)), ignore, never)
        found.append([np.array(WorkFolder.open(request).moments(g)) for g in chosen])

    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(two, one)


def test_the_importance_matrix_covers_every_weight_and_the_head(request_for, measured):
    entries = read_imatrix(measured.imatrix)

    assert len(entries) == 22
    assert "output.weight" in entries
    assert all((e.counts == request_for.max_tokens).all() for e in entries.values())


def test_evidence_orders_types_and_roundings(measured):
    for tensor in measured.evidence.tensors:
        stock, rows = tensor.errors["stock"], tensor.errors["rows"]
        assert stock["Q3_K"] > stock["Q4_K"] > stock["Q5_K"] > stock["Q6_K"] > stock["Q8_0"] > 0
        assert all(rows[q] <= stock[q] * 1.001 for q in stock)
        assert tensor.alpha > 0
    ratio = np.array([t.errors["gptq"]["Q4_K"] / t.errors["stock"]["Q4_K"] for t in measured.evidence.tensors])
    # Measured: 0.37 on all tensors of this model (log-archive.md, "GPTQ rounding").
    assert np.exp(np.log(ratio).mean()) < 0.5


def test_a_second_measurement_is_read_from_the_cache(request_for, measured):
    phases = []

    again = measure(request_for, lambda p: phases.append(p.phase), never)

    assert again.evidence == measured.evidence
    assert phases == []


def test_what_a_kill_left_behind_is_used_and_gives_the_same_evidence(request_for, measured):
    for path in measured.folder.glob("evidence-*"):
        path.unlink()
    path = swaps_file(WorkFolder.open(request_for), "balanced", request_for.probe_tokens)
    some = dict(list(msgspec.json.decode(path.read_bytes()).items())[:20])
    path.write_bytes(msgspec.json.encode(some))
    (measured.folder / "errors" / "blk.1.ffn_down.weight.json").write_bytes(b'{"half a')
    phases = []

    again = measure(request_for, lambda p: phases.append(p.phase), never)

    assert again.evidence == measured.evidence
    assert "moments" not in phases
    assert {"errors", "alpha"} <= set(phases)


def test_cancelling_ends_the_children_and_leaves_no_partial_file(request_for, tmp_path):
    request = msgspec.structs.replace(request_for, cache_dir=tmp_path)
    started = threading.Event()
    before = set(psutil.Process().children())  # the server that other tests share

    with pytest.raises(Cancelled):
        measure(request, lambda p: started.set() if p.phase == "moments" else None, started.is_set)

    assert set(psutil.Process().children()) <= before
    assert not list(tmp_path.rglob("*.partial*"))
    assert not list(tmp_path.rglob("*.npy"))


def test_a_killed_child_is_told_with_its_exit_code(request_for, measured):
    groups = tuple(g.name for g in WorkFolder.open(request_for).groups())
    child = Child("moments", MomentsRequest(measure=request_for, groups=groups))
    while not child.progress:
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(ChildDied) as caught:
        _wait(child)

    assert caught.value.exit_code == -signal.SIGKILL


def _wait(child):
    while not child.poll():
        time.sleep(0.05)


def test_a_child_does_not_outlive_its_parent(request_for, measured):
    groups = tuple(g.name for g in WorkFolder.open(request_for).groups())
    code = (
        "import sys, time, msgspec\n"
        "from quantize.child import Child\n"
        "from quantize.measure.collect_hessians import MomentsRequest\n"
        "from quantize.measurements import decode\n"
        "child = Child('moments', decode(sys.argv[1], MomentsRequest))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    raw = msgspec.json.encode(MomentsRequest(measure=request_for, groups=groups), enc_hook=str).decode()
    parent = subprocess.Popen([sys.executable, "-c", code, raw], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    child = int(parent.stdout.readline())
    assert runs(child)

    parent.kill()
    parent.wait()
    parent.stdout.close()

    wait_for(lambda: not runs(child), what="the child's end")


def _copy_with(source: Path, tmp_path: Path, tensor: str, value: bytes) -> Path:
    copy = tmp_path / "damaged.gguf"
    shutil.copy(source, copy)
    offset = next(t.data_offset for t in gguf.GGUFReader(source).tensors if t.name == tensor)
    with copy.open("r+b") as file:
        file.seek(int(offset) + 64)
        file.write(value)
    return copy


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["NaN", "infinity"])
def test_weights_that_are_not_finite_are_refused_by_name(request_for, tmp_path, value):
    damaged = _copy_with(request_for.source, tmp_path, "blk.1.ffn_up.weight", struct.pack("<e", value))
    request = msgspec.structs.replace(request_for, source=damaged, cache_dir=tmp_path / "cache")

    with pytest.raises(TesseraError, match=r"blk\.1\.ffn_(up|down)\.weight"):
        measure(request, ignore, never)


def test_a_truncated_source_is_refused(request_for, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(request_for.source.read_bytes()[:-5000])

    with pytest.raises(BadFile, match="incomplete"):
        measure(msgspec.structs.replace(request_for, source=cut, cache_dir=tmp_path / "c"), ignore, never)


def test_a_text_that_is_too_short_or_no_text_is_refused(request_for, tmp_path):
    short, binary = tmp_path / "short.txt", tmp_path / "binary.txt"
    short.write_text("A few words only.")
    binary.write_bytes(b"\xff\xfe\x00\x80" * 5000)

    with pytest.raises(TextTooShort, match="2048"):
        measure(_with_text(request_for, tmp_path, short), ignore, never)
    with pytest.raises(CannotRead, match="binary"):
        measure(_with_text(request_for, tmp_path, binary), ignore, never)
    with pytest.raises(CannotRead, match="missing"):
        measure(_with_text(request_for, tmp_path, tmp_path / "missing.txt"), ignore, never)


def _with_text(request: MeasureRequest, tmp_path: Path, text: Path) -> MeasureRequest:
    return msgspec.structs.replace(request, calibration=text, cache_dir=tmp_path / "cache")
