"""Compares with llama.cpp's own tools: set TESSERA_LLAMA_CPP to a folder with llama-imatrix and llama-quantize.

Run: TESSERA_LLAMA_CPP=... python -m pytest tests/optin/test_llama_cpp_tools.py
"""

import os
import subprocess
from pathlib import Path

import gguf
import numpy as np
import pytest

from quantize.child import run_task
from quantize.files.imatrix import read_imatrix
from quantize.files.measurement_folder import WorkFolder
from quantize.job.round_plan import round_plan
from quantize.measure.collect_hessians import MomentsRequest, write_importance
from quantize.measurements import MeasureRequest, RoundRequest
from quantize.native.libraries import library_dir
from tests.support.models.measured_model import CALIBRATION, SOURCE, ignore, never

TOOLS = os.environ.get("TESSERA_LLAMA_CPP")
pytestmark = [pytest.mark.skipif(not TOOLS, reason="TESSERA_LLAMA_CPP is not set"), pytest.mark.timeout(600)]
TOKENS = 8192


def tool(name: str, *args: object) -> None:
    # The very library we call: another build rounds 0.15 % of the bytes differently (fused multiply-adds).
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", "LD_PRELOAD": str(library_dir() / "libggml-base.so.0")}
    subprocess.run([str(Path(TOOLS) / name), *map(str, args)], check=True, capture_output=True, env=env)


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """Second moments and importance on text that reads the same with and without special tokens."""
    folder = tmp_path_factory.mktemp("oracle")
    text = folder / "text.txt"
    text.write_text(CALIBRATION.read_text(encoding="utf-8").replace("<|", "<"), encoding="utf-8")
    request = MeasureRequest(
        source=SOURCE, calibration=text, cache_dir=folder / "cache", threads=2, max_tokens=TOKENS
    )
    run_task("survey", request, ignore, never)
    work = WorkFolder.open(request)
    groups = work.groups()
    run_task("moments", MomentsRequest(measure=request, groups=tuple(g.name for g in groups)), ignore, never)
    write_importance(work, groups, text.name)
    return request, work


def test_our_importance_matrix_is_llama_imatrixs(collected, tmp_path):
    request, work = collected
    theirs = tmp_path / "theirs.gguf"
    tool(
        "llama-imatrix", "-m", SOURCE, "-f", request.calibration, "-o", theirs,
        "-c", 512, "-t", 2, "--chunks", TOKENS // 512, "--process-output",
    )  # fmt: skip

    expected, found = read_imatrix(theirs), read_imatrix(work.imatrix)

    assert expected.keys() <= found.keys()
    for name, entry in expected.items():
        assert np.array_equal(entry.counts, found[name].counts)
        assert np.allclose(entry.sums, found[name].sums, rtol=0.02, atol=1e-3 * float(entry.sums.max())), name


@pytest.mark.parametrize("mix", ["Q3_K_M", "IQ4_XS", "Q4_K_M", "Q5_K_M", "IQ3_M", "Q2_K"])
def test_stock_rounding_is_llama_quantizes_byte_for_byte(collected, tmp_path, mix):
    request, work = collected
    theirs = tmp_path / "theirs.gguf"
    tool("llama-quantize", "--imatrix", work.imatrix, SOURCE, theirs, mix, 2)
    tensors = {t.name: t for t in gguf.GGUFReader(theirs).tensors}
    types = {n: t.tensor_type.name for n, t in tensors.items() if t.tensor_type.name != "F32"}
    task = RoundRequest(measure=request, types=types, rounding="stock", imatrix=work.imatrix)

    packed = list(round_plan(task, ignore, never))

    assert {p.name for p in packed} == types.keys()
    for ours in packed:
        assert np.array_equal(ours.blocks.reshape(-1), np.array(tensors[ours.name].data).reshape(-1)), ours.name
