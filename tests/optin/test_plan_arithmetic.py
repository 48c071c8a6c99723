"""A plan made on a CPU with AVX-512 gives the same bytes on one with AVX2, with 1, 2 and 4 threads.

    TESSERA_VARIANTS=FOLDER python -m pytest -o addopts= -q tests/optin/test_plan_arithmetic.py

FOLDER is the `llama_cpp` of an installed Tessera (`_internal/llama_cpp`) or of a wheel from
installers/bundle/make.py, with a CPU library for each kind of CPU. The other CPU is simulated: the installation
has only the library that it would choose, numpy and OpenBLAS use its kernels, and the C library is told that
AVX-512 is missing. Needs a CPU with AVX-512.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = os.environ.get("TESSERA_VARIANTS", "")
SIMD = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not VARIANTS, reason="TESSERA_VARIANTS names no llama_cpp with variants"),
    pytest.mark.skipif("X86_V4" not in SIMD, reason="no AVX-512 here"),
]
# What the C library may not use. Source: glibc, sysdeps/x86/cpu-features.c.
NO_AVX512 = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD"
AVX2 = {
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": " ".join(n for n in SIMD if n != "X86_V3"),
    "GLIBC_TUNABLES": NO_AVX512,
}
JOB = """
import sys
from pathlib import Path
import msgspec
from tests.support.models.measured_model import HELD_OUT, ignore, never
from tests.support.models.small_folder import short_text
from quantize.job.execute import quantize
from quantize.job.plan_file import read_plan
from quantize.job.request import QuantizeRequest
from quantize.types import SizeTarget
out, plan, threads, force = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5] == "force"
request = QuantizeRequest(
    source=Path(sys.argv[1]), out=out / "made.gguf", goal=SizeTarget(kind="bpw", bpw=5.5),
    calibration=short_text(out / "text.txt", 60_000), held_out=HELD_OUT, cache_dir=out / "cache", threads=threads,
    verify_tokens=4096, force=force,
)
if plan == "-":
    request = msgspec.structs.replace(request, export_plan=out / "made.plan.json")
else:
    given = read_plan(Path(plan))
    request = msgspec.structs.replace(
        request, plan=given, goal=given.goal, tier=given.tier, rounding=given.rounding, max_tokens=given.max_tokens
    )
print(quantize(request, ignore, never).warnings)
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    sys.path.insert(0, str(ROOT))
    from tests.support.models.small_folder import first_layers

    folder = tmp_path_factory.mktemp("plans")
    first_layers(folder / "source", 2)
    return folder


def installation(work: Path, *variants: str) -> Path:
    """A folder of packages with a llama_cpp of these CPU libraries; without any named, of all."""
    folder = work / "-".join(["lib", *variants])
    if not folder.exists():
        shutil.copytree(VARIANTS, folder / "llama_cpp")
        for path in (folder / "llama_cpp" / "lib").glob("libggml-cpu-*.so") if variants else ():
            if path.stem.removeprefix("libggml-cpu-") not in variants:
                path.unlink()
    return folder


def run(
    work: Path, name: str, packages: Path, plan: str = "-", *, threads: int = 2, force: bool = False, env=None
) -> subprocess.CompletedProcess:
    out = work / name
    out.mkdir()
    places = os.pathsep.join(map(str, (packages, ROOT)))
    command = [sys.executable, "-c", JOB, str(work / "source"), str(out), plan, str(threads)]
    return subprocess.run(
        [*command, "force" if force else "strict"],
        env={**os.environ, "PYTHONPATH": places, **(env or {})},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def digest(work: Path, name: str) -> str:
    return hashlib.sha256((work / name / "made.gguf").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def made(work) -> str:
    """A plan made where every instruction set of this processor may be used."""
    done = run(work, "made", installation(work))
    assert done.returncode == 0, done.stderr
    path = work / "made" / "made.plan.json"
    assert '"arithmetic": "x86-64-v3"' in path.read_text()
    return str(path)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_processor_with_avx2_makes_the_same_bytes(work, made, threads):
    name = f"avx2-{threads}"
    done = run(work, name, installation(work, "haswell", "sse42"), made, threads=threads, env=AVX2)
    assert done.returncode == 0, done.stderr
    assert "byte for byte the file the plan describes" in done.stdout
    assert digest(work, name) == digest(work, "made")


def test_an_installation_compiled_for_one_processor_refuses_and_says_why(work, made):
    """With --force it makes the other file, which shows that the arithmetic does decide."""
    alone = installation(work, "zen4", "skylakex")
    done = run(work, "alone", alone, made)
    assert done.returncode != 0
    assert "has not: other bytes would come out" in done.stderr
    assert not (work / "alone" / "cache").exists()
    forced = run(work, "forced", alone, made, force=True)
    assert forced.returncode == 0, forced.stderr
    assert "not byte for byte" in forced.stdout
    assert digest(work, "forced") != digest(work, "made")
