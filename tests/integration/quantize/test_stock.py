"""Tessera's implementation of llama.cpp's presets against llama.cpp's own decisions, for many shapes."""

import json
import subprocess
import sys

import pytest

from quantize.files.gguf_file import read_gguf
from quantize.plan.llama_cpp_preset_rules import MIXES
from quantize.plan.llama_cpp_presets import stock_types
from quantize.plan.speed import model_spec

# A dry run in a child process: llama.cpp logs each tensor's type and writes nothing.
DRY_RUNS = """
import ctypes, json, re, sys
from pathlib import Path
import llama_cpp
from llama_cpp import llama_cpp as lib
load = lib._lib.ggml_backend_load_all_from_path
load.argtypes, load.restype = [ctypes.c_char_p], None
load(str(Path(llama_cpp.__file__).parent / "lib").encode())
lib.llama_backend_init()
lines = []
@lib.llama_log_callback
def log(level, text, user_data):
    lines.append(text)
lib.llama_log_set(log, ctypes.c_void_p(0))
path, imatrix, mixes = sys.argv[1], sys.argv[2] == "1", json.loads(sys.argv[3])
row = re.compile(r"\\[ *\\d+/ *\\d+\\] (\\S+) +- .*?type = +(\\S+), size = +\\S+ MiB(?: -> .*?\\((\\S+)\\))?")
values = (ctypes.c_float * 1)(1.0)
data = (lib.llama_model_imatrix_data * 2)()
data[0].name, data[0].data, data[0].size = b"nothing", values, 1
result = {}
for name, ftype in mixes.items():
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.dry_run = ftype, True
    if imatrix:
        params.imatrix = ctypes.cast(data, type(params.imatrix))
    lines.clear()
    assert lib.llama_model_quantize(path.encode(), b"/nowhere", params) == 0, name
    text = b"".join(lines).decode()
    result[name] = {m[1]: (m[3] or m[2]).upper() for m in row.finditer(text)}
print(json.dumps(result))
"""

SHAPES = {
    "grouped heads, own output": {"heads": 8, "kv_heads": 1, "tied": False, "layers": 9},
    "eight experts": {"experts": 8, "layers": 9, "heads": 8, "tied": False},
    "many experts": {"arch": "qwen3moe", "experts": 16, "layers": 12, "heads": 8, "kv_heads": 1},
    "80 layers": {"layers": 80, "heads": 8, "tied": False},
    "80 layers of qwen2": {"arch": "qwen2", "layers": 80, "heads": 8},
    "rows of 32": {"embd": 160, "ffn": 416, "head_dim": 40},
    "rows that fit nothing": {"embd": 288, "ffn": 270, "head_dim": 72, "tied": False},
}


@pytest.mark.parametrize("imatrix", [False, True], ids=["plain", "imatrix"])
@pytest.mark.parametrize("name", SHAPES)
def test_every_mix_is_what_llama_cpp_does(shape, name, imatrix):
    path = shape.write(**SHAPES[name])
    mixes = {mix: MIXES[mix].ftype for mix in MIXES}
    command = [sys.executable, "-c", DRY_RUNS, str(path), str(int(imatrix)), json.dumps(mixes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    model = model_spec(read_gguf(path))
    for mix in MIXES:
        ours = {k: v.name for k, v in stock_types(model, mix, has_imatrix=imatrix).items()}
        assert ours == theirs[mix], mix
