"""Converting as jobs: a Hugging Face folder to GGUF, a GGUF file to an ONNX folder."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from devices.msgspec_lock import learned
from engine.job_kinds.quantize.onnx import convert
from engine.jobs.jobs import Control, JobKind, JobRegistry
from engine.library.catalogue import Catalogue
from quantize.onnx.request import EXACT, FAST, FixedOptions
from quantize.types import FloatType


class ToGguf(msgspec.Struct, frozen=True, kw_only=True, tag="gguf", tag_field="to"):
    """Convert the folder `source`; `out` None: a file of the library."""

    source: str
    out: str | None = None
    float_type: FloatType = "auto"


class ToOnnx(msgspec.Struct, frozen=True, kw_only=True, tag="onnx", tag_field="to"):
    """Convert the model or file `source`; `out` None: a folder of the library. `fixed`: of fixed shapes."""

    source: str
    out: str | None = None
    exact: bool = False
    all_logits: bool = False
    fixed: FixedOptions | None = None


class Fetch(msgspec.Struct, frozen=True, kw_only=True, tag="converter", tag_field="to"):
    """Fetch llama.cpp's own converter and the packages it needs."""


def register(registry: JobRegistry, open_catalogue: Callable[[], Catalogue]) -> None:
    """Teach a registry the kind `convert`; one at a time, for it reads and writes whole models."""

    def run(params: dict[str, Any], control: Control) -> dict[str, Any]:
        task = msgspec.convert(params, learned(ToGguf | ToOnnx | Fetch))
        with closing(open_catalogue()) as catalogue:
            if isinstance(task, Fetch):
                return _fetched(catalogue, control)
            return _gguf(catalogue, task, control) if isinstance(task, ToGguf) else _onnx(catalogue, task, control)

    registry.register(JobKind.CONVERT, run)


def _fetched(catalogue: Catalogue, control: Control) -> dict[str, Any]:
    from engine.library.converter.environment import install  # noqa: PLC0415 - not while the server starts

    made = install(catalogue.paths.converter, control)
    return {"path": str(made.folder), "bytes": made.num_bytes}


def _gguf(catalogue: Catalogue, task: ToGguf, control: Control) -> dict[str, Any]:
    from engine.library.converting import convert_folder  # noqa: PLC0415 - gguf and the families

    out = Path(task.out) if task.out else None
    entry, done = convert_folder(catalogue, Path(task.source), out, task.float_type, control)
    return {"model": entry.id, "path": str(entry.path), "type": done.float_type, "notes": list(done.notes)}


def _onnx(catalogue: Catalogue, task: ToOnnx, control: Control) -> dict[str, Any]:
    out = Path(task.out) if task.out else None
    model, done = convert(
        task.source,
        out,
        catalogue,
        control,
        accuracy_level=EXACT if task.exact else FAST,
        all_logits=task.all_logits,
        fixed=task.fixed,
    )
    return {"model": model, "path": done["folder"], **done}
