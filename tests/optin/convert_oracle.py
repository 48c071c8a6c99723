"""Compares Tessera's converter with llama.cpp's, on generated checkpoints of every family: tensors and metadata.

    python tests/optin/convert_oracle.py CHECKPOINTS LLAMA_CPP_SOURCE PYTHON_WITH_TORCH

CHECKPOINTS is made by make_checkpoints.py. Results: log-archive.md, convert.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from quantize.convert.folder import ConvertRequest, convert
from quantize.files.gguf_file import GgufFile, LazyArray, read_gguf

# Written by one converter only because transformers fills in a configuration's silent defaults, or because the two
# name a folder differently; each is checked by hand when it appears.
TOLERATED: dict[str, str] = {}


def value(file: GgufFile, key: str):
    found = file.metadata.get(key)
    if isinstance(found, LazyArray):
        return found.strings() if found.element_type == 8 else found.numbers().tolist()
    return list(found) if isinstance(found, tuple) else found


def differences(ours: GgufFile, theirs: GgufFile) -> list[str]:
    lines = []
    for key in sorted(set(ours.entries) | set(theirs.entries)):
        a, b = value(ours, key), value(theirs, key)
        if key not in ours.entries or key not in theirs.entries:
            lines.append(f"{key}: ours {str(a)[:50]}, theirs {str(b)[:50]}")
        elif a != b or ours.entries[key].value_type != theirs.entries[key].value_type:
            detail = ""
            if isinstance(a, list) and isinstance(b, list):
                first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                detail = f" first at {first}: {a[first : first + 2]} {b[first : first + 2]}; {len(a)} {len(b)}"
            lines.append(f"{key}: ours {str(a)[:40]}, theirs {str(b)[:40]}{detail}")
    mine = {t.name: t for t in ours.tensors}
    other = {t.name: t for t in theirs.tensors}
    lines += [f"tensor {n} only in one" for n in sorted(set(mine) ^ set(other))]
    for name in sorted(set(mine) & set(other)):
        a, b = mine[name], other[name]
        if (a.shape, a.ggml_type) != (b.shape, b.ggml_type):
            lines.append(f"tensor {name}: {a.shape} {a.ggml_type.name}, theirs {b.shape} {b.ggml_type.name}")
        elif not np.array_equal(ours.tensor_bytes(a), theirs.tensor_bytes(b)):
            lines.append(f"tensor {name}: bytes differ")
    return lines


def main(checkpoints: Path, source: str, python: str) -> int:
    failed = 0
    for folder in sorted(p for p in checkpoints.iterdir() if p.is_dir()):
        with TemporaryDirectory() as scratch:
            a, b = Path(scratch) / "ours.gguf", Path(scratch) / "theirs.gguf"
            done = convert(ConvertRequest(folder=folder, out=a), lambda *_: None)
            script = str(Path(__file__).with_name("llama_cpp_convert.py"))
            command = [python, script, source, str(folder), str(b), done.float_type, done.pretokenizer]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if not b.exists():
                print(f"{folder.name}: llama.cpp's converter failed\n{ran.stderr[-1500:]}")
                failed += 1
                continue
            lines = differences(read_gguf(a), read_gguf(b))
            lines = [line for line in lines if line.split(":")[0] not in TOLERATED]
            count = len(read_gguf(a).tensors)
            print(
                f"{folder.name}: {count} tensors, {done.float_type}, {done.pretokenizer}: {len(lines)} differences"
            )
            for line in lines:
                print("   ", line)
            failed += bool(lines)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
