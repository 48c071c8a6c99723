"""Converts an untrusted Hugging Face folder (safetensors) to a GGUF file, in a child process."""

from pathlib import Path

from devices.atomic_file import unfinished
from engine.core.errors import InputFault
from engine.jobs.jobs import JobContext
from engine.library.catalogue import Catalogue
from engine.library.converter.environment import installed
from engine.library.converter.run import convert_with
from engine.library.errors import CannotWrite
from engine.library.model_ids import folder_name
from engine.library.types import ModelEntry, Origin
from engine.message_catalog.reasons import because
from quantize.child import answer_of
from quantize.convert.folder import ConversionResult, ConvertRequest
from quantize.errors import ConverterNeeded
from quantize.measurements import Progress
from quantize.types import FloatType


def convert_folder(
    catalogue: Catalogue, folder: Path, out: Path | None, float_type: FloatType, control: JobContext
) -> tuple[ModelEntry, ConversionResult]:
    """Convert `folder` and add the file to the catalogue; `out` defaults to a file in the library's folder.

    If only llama.cpp supports the architecture, its own converter does the conversion, if installed.

    Raises: ConverterNeeded: llama.cpp's converter is not installed. InputFault, CannotWrite, NoConverter,
    TesseraError; Cancelled from `control` (no file is left then).
    """
    folder = folder.absolute()
    if not (folder / "config.json").is_file():
        raise InputFault(because("no_config", folder=str(folder)), "folder")
    target = (out or catalogue.paths.models / "local" / f"{folder_name(folder)}.gguf").absolute()
    if target.suffix.lower() != ".gguf":
        raise InputFault(because("not_named_gguf", path=str(target)), "out")
    if target.exists():
        raise InputFault(because("there_already", path=str(target)), "out")
    try:
        with unfinished(target) as partial:
            done = _written(catalogue, folder, partial, float_type, control)
            partial.rename(target)
    except OSError as error:
        raise CannotWrite(str(target), error.strerror or str(error)) from error
    return catalogue.add(target, Origin(kind="built")), done


def _written(
    catalogue: Catalogue, folder: Path, out: Path, float_type: FloatType, control: JobContext
) -> ConversionResult:
    """Write `out` with Tessera's converter, or with llama.cpp's if only that supports the architecture."""

    def on_progress(progress: Progress) -> None:
        control.report("converting", int(progress.done), int(progress.total))

    request = ConvertRequest(folder=folder, out=out, float_type=float_type)
    try:
        return answer_of(ConversionResult, "convert", request, on_progress, lambda: control.stopping)
    except ConverterNeeded:
        converter = installed(catalogue.paths.converter)
        if converter is None:
            raise
    return convert_with(converter, folder, out, float_type, control)
