"""The arithmetic of a child: requested, available where the libraries are, and with the same bits."""

import os
import subprocess
import sys

import numpy as np
import pytest

from quantize.files.measurement_folder import WorkFolder
from quantize.gptq.tensors import TensorsRequest
from quantize.measurements import MeasureRequest, RoundRequest
from quantize.reproducible_math import PORTABLE, arithmetic_here, environment_of

SIMD = np.show_config(mode="dicts")["SIMD Extensions"]["found"]


@pytest.fixture
def request_of(tmp_path):
    def made(name):
        for path in ("model", "text"):
            (tmp_path / path).write_text("x")
        where = {"source": tmp_path / "model", "calibration": tmp_path / "text", "cache_dir": tmp_path / "cache"}
        return MeasureRequest(**where, arithmetic=name)

    return made


@pytest.fixture
def with_variants(tmp_path, monkeypatch):
    """An installation whose llama.cpp has a CPU library for each kind of CPU."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("haswell", "zen4"):
        (folder / f"libggml-cpu-{name}.so").touch()
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(folder))
    return folder


@pytest.mark.skipif("X86_V3" not in SIMD or sys.platform == "darwin", reason="no processor with AVX2")
def test_it_is_had_where_llama_cpp_has_the_library(with_variants):
    assert arithmetic_here() == PORTABLE
    (with_variants / "libggml-cpu-haswell.so").unlink()
    assert arithmetic_here() == ""


def test_a_child_gets_what_its_request_or_one_within_asks_for(request_of, with_variants):
    plain, asked = request_of(""), request_of(PORTABLE)
    assert environment_of(plain) == environment_of({"source": "x"}) == {}
    found = environment_of(asked)
    assert found["OPENBLAS_CORETYPE"] == "Haswell"
    assert found["TESSERA_CPU_LIBRARY"] == str(with_variants / "libggml-cpu-haswell.so")
    assert found.get("NPY_DISABLE_CPU_FEATURES", "").split() == [n for n in SIMD if n != "X86_V3"]
    rounds = RoundRequest(measure=asked, types={})
    assert environment_of(rounds) == environment_of(TensorsRequest(round=rounds, names=())) == found


def test_what_other_arithmetic_measured_is_kept_apart(request_of):
    places = {WorkFolder.open(request_of(name)).path for name in ("", PORTABLE)}
    assert len(places) == 2


# Products whose sums use blocks of different lengths in OpenBLAS's kernels, and powers, which numpy also has in
# AVX-512.
SUMS = """
import hashlib, numpy as np
rng = np.random.default_rng(1)
rows = rng.standard_normal((512, 768)).astype(np.float32)
gram = rows.T @ rows
found = [gram, np.abs(rows) ** np.float32(0.7), np.linalg.cholesky(gram.astype(np.float64) + np.eye(768))]
print(hashlib.sha256(b"".join(np.ascontiguousarray(f).tobytes() for f in found)).hexdigest())
"""


@pytest.mark.process
def test_sums_are_the_same_whatever_kernels_the_processor_would_get(request_of, with_variants):
    """OpenBLAS can be set to use the kernels of another CPU, which simulates that CPU."""
    cores = ["Haswell", *(["SkylakeX"] if "X86_V4" in SIMD else [])]
    asked = environment_of(request_of(PORTABLE))
    found = {
        (core, bool(extra)): subprocess.run(
            [sys.executable, "-c", SUMS],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": core, **extra},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for core in cores
        for extra in ({}, asked)
    }  # fmt: skip
    assert len({digest for (_, portable), digest in found.items() if portable}) == 1
    if len(cores) > 1:
        assert found["SkylakeX", False] != found["SkylakeX", True], "the kernels do differ"
