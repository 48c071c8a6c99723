"""Writes a dummy-weight model: the exact tensors and types of a model, with random weights. Runs as a process.

    python -m engine.job_kinds.bench.dummy_model OUT --shape qwen3-8b --type Q4_K_M
    python -m engine.job_kinds.bench.dummy_model OUT --like MODEL.gguf
    python -m engine.job_kinds.bench.dummy_model OUT --header KEPT.header     (of a file that is not stored locally)
    python -m engine.job_kinds.bench.dummy_model OUT --dimensions JSON --type Q4_K

Speed and memory of the kernels do not depend on the weights' values, so the measurements are those of the real
file. The generated text is meaningless.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from devices.child_command import child_command
from devices.msgspec_lock import learned
from engine.core.errors import EnvironmentFault, InputFault
from engine.job_kinds.bench import shapes
from engine.library.hub import header_cache
from engine.message_catalog.reasons import because
from quantize.files.gguf_file import ValueType, read_gguf_header
from quantize.files.gguf_header import GgufFile
from quantize.files.gguf_write import GgufWriter, MetaValue, TensorSlot, array, copied_metadata, scalar
from quantize.ggml_types import GgmlType
from quantize.plan.llama_cpp_preset_rules import MIXES
from quantize.plan.llama_cpp_presets import stock_types
from quantize.types import ModelSpec, TensorSpec

# Number of rows that are really quantized for each tensor shape; the file repeats them. They do not all fit in a
# CPU cache.
POOL_ROWS: Final = 64
CHUNK_ROWS: Final = 4096
# A completely full disk breaks other programs.
SPARE_DISK_BYTES: Final = 1 << 30
_PLAIN: Final[dict[GgmlType, np.dtype[Any]]] = {
    GgmlType.F32: np.dtype(np.float32),
    GgmlType.F16: np.dtype(np.float16),
}


class StandInFailed(EnvironmentFault):
    """The dummy-weight model could not be written; `reason` is the child process's last message."""

    code = "standin_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(because("standin_failed", why=reason))
        self.reason = reason


def spec_of_shape(name: str, mix: str) -> tuple[dict[str, MetaValue], list[TensorSlot]]:
    """Header and tensors of a named shape in a llama.cpp preset (Q4_K_M) or plain type (F16), in any case.

    Raises: InputFault: unknown shape or preset.
    """
    name, mix = name.lower(), mix.upper()
    if name not in shapes.SHAPES:
        raise InputFault(f"There is no shape {name!r}. Known: {', '.join(shapes.SHAPES)}.", "shape")
    return spec_of_dimensions(name, shapes.SHAPES[name], mix)


def spec_of_dimensions(
    name: str, d: shapes.Dimensions, mix: str, *, uniform: bool = False
) -> tuple[dict[str, MetaValue], list[TensorSlot]]:
    """Header and tensors of these dimensions in a preset; `uniform` uses one type for every matrix.

    Raises: InputFault: unknown preset or type.
    """
    tensors = shapes.tensors(d)
    in_floats = {n for n, s in tensors if len(s) == 1 or n.endswith(shapes.ROUTER)}
    plain = tuple(TensorSpec(n, s, "F32" if n in in_floats else "F16") for n, s in tensors)
    model = ModelSpec(
        architecture=d.arch,
        num_layers=d.layers,
        num_heads=d.heads,
        num_kv_heads=d.kv_heads,
        num_experts=d.experts[0] if d.experts else 0,
        tensors=plain,
    )
    if uniform or (mix in GgmlType.__members__ and mix not in MIXES):
        if mix not in GgmlType.__members__:
            raise InputFault(f"There is no type {mix!r}, such as Q4_K.", "type")
        types = {t.name: GgmlType.F32 if t.name in in_floats else GgmlType[mix] for t in plain}
    else:
        try:
            types = stock_types(model, mix, has_imatrix=True)
        except KeyError:
            raise InputFault(f"There is no llama.cpp preset {mix!r}, such as Q4_K_M or Q8_0.", "type") from None
    return shapes.metadata(name, d), [TensorSlot(n, s, types[n]) for n, s in tensors]


def spec_of_header(path: Path) -> tuple[dict[str, MetaValue], list[TensorSlot]]:
    """Header and tensors from a stored header without its file; the vocabulary is a dummy of the same size.

    Raises: InputFault: it cannot be read, or is not a language model.
    """
    header = header_cache.recall(path.parent, path.stem, path.stem)
    if header is None:
        raise InputFault(f"{path} contains no header.", "header")
    embedding = next((t for t in header.tensors if t.name == "token_embd.weight"), None)
    if embedding is None:
        raise InputFault("Only language models can be measured without their file.", "header")
    metadata: dict[str, MetaValue] = {}
    for key, value in header.metadata.items():
        if key.startswith(("tokenizer.", "split.", "general.")):
            continue
        if isinstance(value, bool | int | float | str):
            metadata[key] = scalar(value)
        elif isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            kind = ValueType.BOOL if all(isinstance(v, bool) for v in value) else ValueType.INT32
            metadata[key] = array(list(value), kind)
    metadata["general.architecture"] = scalar(header.architecture)
    metadata |= shapes.vocabulary("default", embedding.shape[1])
    return metadata, [TensorSlot(t.name, t.shape, t.ggml_type) for t in header.tensors]


def header_of_shape(name: str, mix: str) -> GgufFile:
    """What a file of a named shape would begin with. Raises: InputFault: unknown shape or preset."""
    metadata, slots = spec_of_shape(name, mix)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.gguf"
        GgufWriter(path, metadata, slots).abandon()
        return read_gguf_header(path)


def spec_like(path: Path) -> tuple[dict[str, MetaValue], list[TensorSlot]]:
    """Header and tensors of a file, whose weights may be missing."""
    file = read_gguf_header(path)
    return copied_metadata(file), [TensorSlot(t.name, t.shape, t.ggml_type) for t in file.tensors]


def rows_of(slot: TensorSlot, rng: np.random.Generator) -> Iterator[np.ndarray[Any, Any]]:
    """The tensor's data in chunks: ones for norms, otherwise random rows of deviation 1/sqrt(row length)."""
    width = slot.shape[0]
    total = int(np.prod(slot.shape[1:], dtype=np.int64)) if len(slot.shape) > 1 else 1
    if len(slot.shape) == 1:
        yield np.ones(width, np.float32).astype(_PLAIN.get(slot.qtype, np.dtype(np.float32)))
        return
    weights = (rng.standard_normal((POOL_ROWS, width), dtype=np.float32) * width**-0.5).astype(np.float32)
    if slot.qtype in _PLAIN:
        pool = weights.astype(_PLAIN[slot.qtype])
    else:
        from quantize.native.blocks import quantize_rows

        pool = quantize_rows(weights, slot.qtype.name, np.ones(width, np.float32), threads=2)
    for start in range(0, total, CHUNK_ROWS):
        yield pool[rng.integers(0, POOL_ROWS, min(CHUNK_ROWS, total - start))]


def write(path: Path, metadata: dict[str, MetaValue], slots: list[TensorSlot]) -> None:
    """Write the file; a partial one is removed."""
    done, total = 0, sum(slot.num_bytes for slot in slots)
    free = shutil.disk_usage(path.parent).free
    if total + SPARE_DISK_BYTES > free:
        sys.exit(f"it takes {total / 2**30:.1f} GiB, and {path.parent} has {free / 2**30:.1f} GiB free")
    writer = GgufWriter(path, metadata, slots)
    rng = np.random.default_rng(0)
    try:
        for slot in slots:
            done += writer.write(slot.name, rows_of(slot, rng))
            sys.stdout.write(f"{done} {total}\n")
            sys.stdout.flush()
        writer.close()
    except BaseException:
        writer.abandon()
        path.unlink(missing_ok=True)
        raise


def write_in_child(
    path: Path,
    *,
    like: Path | None = None,
    header: Path | None = None,
    shape: str = "",
    probe: shapes.Dimensions | None = None,
    mix: str = "",
    on_progress: Callable[[int, int], None],
) -> None:
    """Write a dummy-weight model in a child process; `on_progress` gets written and total bytes.

    Raises: StandInFailed.
    """
    if like is not None:
        chosen = ["--like", str(like)]
    elif header is not None:
        chosen = ["--header", str(header)]
    elif probe is not None:
        chosen = ["--dimensions", msgspec.json.encode(probe).decode(), "--type", mix]
    else:
        chosen = ["--shape", shape, "--type", mix]
    command = child_command("engine.job_kinds.bench.dummy_model", str(path), *chosen)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            for line in child.stdout:
                done, total = line.split()
                on_progress(int(done), int(total))
        except BaseException:
            child.kill()
            path.unlink(missing_ok=True)
            raise
        stderr_lines = child.stderr.read().strip().splitlines()
    if child.returncode != 0:
        path.unlink(missing_ok=True)
        raise StandInFailed(stderr_lines[-1] if stderr_lines else f"exit code {child.returncode}")


def main() -> None:
    """The child process's entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape")
    parser.add_argument("--type", default="Q4_K_M")
    parser.add_argument("--like", type=Path)
    parser.add_argument("--header", type=Path)
    parser.add_argument("--dimensions")
    options = parser.parse_args()
    if options.like:
        spec = spec_like(options.like)
    elif options.header:
        spec = spec_of_header(options.header)
    elif options.dimensions:
        dims = msgspec.json.decode(options.dimensions, type=learned(shapes.Dimensions))
        spec = spec_of_dimensions("probe", dims, options.type, uniform=True)
    else:
        spec = spec_of_shape(options.shape, options.type)
    write(options.out, *spec)


if __name__ == "__main__":
    main()
