"""With the same recipe, Tessera's file equals that of llama.cpp's own quantizer, byte for byte."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quantize.files.gguf_file import GgufFile, read_gguf
from quantize.files.imatrix import Importance, write_imatrix
from quantize.job.write_model import WriteRequest, write_model
from quantize.plan.llama_cpp_preset_rules import MIXES
from quantize.plan.llama_cpp_presets import stock_types
from quantize.plan.speed import model_spec
from quantize.tensor_rules import allows_quantization
from quantize.types import TensorSpec

pytestmark = pytest.mark.process

THEIRS = """
import ctypes, sys
from pathlib import Path
import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as lib
from quantize.files.imatrix import read_imatrix

load = lib._lib.ggml_backend_load_all_from_path
load.argtypes, load.restype = [ctypes.c_char_p], None
load(str(Path(llama_cpp.__file__).parent / "lib").encode())
lib.llama_backend_init()
source, out, ftype, imatrix = sys.argv[1:]
params = lib.llama_model_quantize_default_params()
params.ftype, params.nthread = int(ftype), 2
if imatrix:
    matrices = {n: [e.mean(i) for i in range(len(e.counts))] for n, e in read_imatrix(Path(imatrix)).items()}
    entries = {n: np.concatenate(rows) for n, rows in matrices.items()}
    data = (lib.llama_model_imatrix_data * (len(entries) + 1))()
    for slot, (name, mean) in zip(data, entries.items()):
        slot.name, slot.size = name.encode(), mean.size
        slot.data = mean.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    params.imatrix = ctypes.cast(data, type(params.imatrix))
assert lib.llama_model_quantize(source.encode(), out.encode(), params) == 0
"""


def random_model(path: Path) -> GgufFile:
    """Fill the sparse part that represents the weights."""
    file = read_gguf(path)
    rng = np.random.default_rng(2)
    with path.open("r+b") as out:
        for tensor in file.tensors:
            kind = np.float32 if tensor.ggml_type.name == "F32" else np.float16
            out.seek(tensor.offset)
            out.write((rng.standard_normal(tensor.num_values) * 0.05).astype(kind).tobytes())
    return file


def made_up_imatrix(path: Path, file: GgufFile) -> Path:
    rng = np.random.default_rng(5)
    entries = {}
    for t in file.tensors:
        if allows_quantization(TensorSpec(t.name, t.shape, t.ggml_type.name)):
            matrices = t.shape[2] if len(t.shape) > 2 else 1
            sums = rng.gamma(1.0, 64.0, (matrices, t.shape[0])).astype(np.float32)
            entries[t.name] = Importance(sums, np.full(matrices, 64.0, np.float32))
    write_imatrix(path, entries, "made up", 512)
    return path


@pytest.mark.parametrize(
    ("mix", "weighted", "threads"),
    [
        ("Q4_K_M", False, 1),
        ("Q4_K_M", True, 3),
        ("Q3_K_S", True, 2),
        ("IQ3_M", True, 2),
        ("IQ4_XS", False, 2),
        ("Q5_0", True, 2),
        ("Q8_0", False, 2),
    ],
)
@pytest.mark.parametrize("experts", [0, 3], ids=["dense", "experts"])
def test_tensors_are_identical(tmp_path, shape, mix, weighted, threads, experts):
    source = shape.write(layers=2, vocab=300, experts=experts, ffn=512, tied=False)
    file = random_model(source)
    imatrix = made_up_imatrix(tmp_path / "imatrix.gguf", file) if weighted else None
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    types = stock_types(model_spec(file), mix, has_imatrix=weighted)
    request = WriteRequest(
        source=source,
        out=ours,
        types={name: qtype.name for name, qtype in types.items()},
        file_type=MIXES[mix].ftype,
        imatrix=imatrix,
        provenance=False,
        threads=threads,
    )
    write_model(request, lambda *_: None)
    command = [sys.executable, "-c", THEIRS, str(source), str(theirs), str(MIXES[mix].ftype), str(imatrix or "")]
    done = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    a, b = read_gguf(ours), read_gguf(theirs)
    mine = {t.name: t for t in a.tensors}
    assert set(mine) == {t.name for t in b.tensors}
    for want in b.tensors:
        got = mine[want.name]
        assert (got.shape, got.ggml_type) == (want.shape, want.ggml_type), want.name
        assert np.array_equal(a.tensor_bytes(got), b.tensor_bytes(want)), want.name
    assert set(a.entries) == set(b.entries)
