"""A Hugging Face folder (safetensors) to a GGUF file of the library: in a child, for the folder is untrusted."""

import os
from pathlib import Path

import msgspec

from engine.errors import InputFault
from engine.jobs import Control
from engine.library.catalogue import Catalogue
from engine.library.errors import CannotWrite
from engine.library.types import ModelEntry, Origin
from quantize.child import run_task
from quantize.convert.folder import Converted, ConvertRequest, FloatType
from quantize.evidence import Progress


def convert_folder(
    catalogue: Catalogue, folder: Path, out: Path | None, float_type: FloatType, control: Control
) -> tuple[ModelEntry, Converted]:
    """Convert `folder` and list the file; without `out` it lies beside the library's own models.

    Raises: InputFault, CannotWrite, quantize.errors.QuantizeError; Cancelled from `control` (nothing is left then).
    """
    folder = folder.absolute()
    if not (folder / "config.json").is_file():
        raise InputFault(f"{folder} is no model folder: there is no config.json in it.", "folder")
    target = (out or catalogue.paths.models / "local" / f"{folder.name}.gguf").absolute()
    if target.exists():
        raise InputFault(f"{target} is there already; name another file.", "out")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")

    def tell(progress: Progress) -> None:
        control.report("converting", int(progress.done), int(progress.total))

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        request = ConvertRequest(folder=folder, out=partial, float_type=float_type)
        done = msgspec.convert(run_task("convert", request, tell, lambda: control.stopping), Converted)
        partial.rename(target)
    except OSError as error:
        raise CannotWrite(str(target), error.strerror or str(error)) from error
    finally:
        partial.unlink(missing_ok=True)
    return catalogue.add(target, Origin(kind="built")), done
