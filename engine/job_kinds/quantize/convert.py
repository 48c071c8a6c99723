"""Conversion jobs: a Hugging Face folder to GGUF, a GGUF file to an ONNX folder."""

import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.child import run_child
from devices.child_command import child_command
from devices.msgspec_lock import learned
from engine.core.errors import EnvironmentFault, InputFault
from engine.core.paths import installed_speech
from engine.jobs.jobs import JobContext, JobKind, JobRegistry
from engine.library.catalogue import Catalogue
from engine.library.types import Origin
from engine.placement.model_settings import named_model
from quantize.child import run_task
from quantize.measurements import Progress
from quantize.onnx.request import EXACT, FAST, FixedOptions, OnnxRequest
from quantize.types import FloatType


class ToGguf(msgspec.Struct, frozen=True, kw_only=True, tag="gguf", tag_field="to"):
    """Convert the folder `source`; `out` None: a file in the library."""

    source: str
    out: str | None = None
    float_type: FloatType = "auto"


class ToOnnx(msgspec.Struct, frozen=True, kw_only=True, tag="onnx", tag_field="to"):
    """Convert the model or file `source`; `out` None: a folder in the library. `fixed`: with fixed shapes."""

    source: str
    out: str | None = None
    exact: bool = False
    all_logits: bool = False
    fixed: FixedOptions | None = None


class Fetch(msgspec.Struct, frozen=True, kw_only=True, tag="converter", tag_field="to"):
    """Download llama.cpp's own converter and the packages it needs."""


def register(registry: JobRegistry, open_catalogue: Callable[[], Catalogue]) -> None:
    """Register the kind `convert`, one job at a time, because it reads and writes whole models."""

    def run(task: ToGguf | ToOnnx | Fetch, control: JobContext) -> dict[str, Any]:
        with closing(open_catalogue()) as catalogue:
            if isinstance(task, Fetch):
                return _fetched(catalogue, control)
            return _gguf(catalogue, task, control) if isinstance(task, ToGguf) else _onnx(catalogue, task, control)

    registry.register(
        JobKind.CONVERT, run, read=lambda stored: msgspec.convert(stored, learned(ToGguf | ToOnnx | Fetch))
    )


def _fetched(catalogue: Catalogue, control: JobContext) -> dict[str, Any]:
    from engine.library.converter.environment import install

    installed = install(catalogue.paths.converter, control)
    return {"path": str(installed.folder), "bytes": installed.num_bytes}


def _gguf(catalogue: Catalogue, task: ToGguf, control: JobContext) -> dict[str, Any]:
    from engine.library.converting import convert_folder

    out = Path(task.out) if task.out else None
    entry, done = convert_folder(catalogue, Path(task.source), out, task.float_type, control)
    return {"model": entry.id, "path": str(entry.path), "type": done.float_type, "notes": list(done.notes)}


def _onnx(catalogue: Catalogue, task: ToOnnx, control: JobContext) -> dict[str, Any]:
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


# Converts a GGUF model of the library, or any file, to an ONNX folder; in a child process, because the file is
# untrusted.

# SPEECH as a source means the installed speech model; SPEECH_FILE identifies a folder of it.
SPEECH: Final = "speech"
SPEECH_FILE: Final = "encoder_model.ort"
# Timeout in seconds on an idle computer; up to a hundred times as long on a busy one.
SPEECH_S: Final = 300.0


class SpeechNotConverted(EnvironmentFault):
    """The child process that writes the graphs failed; the message gives the reason."""

    code = "conversion_failed"


def convert(
    source: str,
    out: Path | None,
    catalogue: Catalogue,
    control: JobContext,
    *,
    accuracy_level: int = FAST,
    all_logits: bool = False,
    fixed: FixedOptions | None = None,
) -> tuple[str, dict[str, Any]]:
    """Convert and add the folder to the library; returns its id and the converter's messages.

    Without `out` it is stored with the library's own models, named after the source.

    Raises: InputFault, ModelNotFound, TesseraError; Cancelled from `control`.
    """
    path = Path(source).expanduser()
    if source == SPEECH or (path / SPEECH_FILE).is_file():
        return _speech(installed_speech() if source == SPEECH else path, out, control, fixed)
    if not path.is_file():
        entry = named_model(catalogue, source)
        if entry.format != "gguf":
            raise InputFault(
                f"{entry.id} is a {entry.format} folder; only GGUF files are converted to ONNX.", "source"
            )
        path = entry.path
    name = f"{path.stem}-onnx{'-all' if all_logits else ''}{'' if accuracy_level == FAST else '-exact'}"
    if fixed is not None:
        name = f"{path.stem}-npu-w{fixed.bits}-{fixed.context}"
    target = (out or catalogue.paths.models / "onnx" / name).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    request = OnnxRequest(
        source=path.absolute(), out=target, accuracy_level=accuracy_level, all_logits=all_logits, fixed=fixed
    )

    def on_progress(progress: Progress) -> None:
        control.report("converting", int(progress.done), int(progress.total))

    done: dict[str, Any] = run_task("onnx", request, on_progress, lambda: control.stopping)
    added = catalogue.add(target, Origin(kind="built"))
    return added.id, done


def _speech(
    folder: Path, out: Path | None, control: JobContext, fixed: FixedOptions | None
) -> tuple[str, dict[str, Any]]:
    """Convert the speech model to fixed shapes.

    Without `out` the folder is created in the model's own folder, where the server looks for it.
    """
    if fixed is None:
        raise InputFault("The speech model is ONNX already; with fixed shapes (--fixed) NPUs take it.", "fixed")
    if not (folder / SPEECH_FILE).is_file():
        raise InputFault(f"No speech model is in {folder}: `python3 start.py speech` fetches one.", "source")
    target = (out or folder / "npu").absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    control.report("converting", 0, 1)
    command = child_command("engine.runner.onnx.speech.convert", str(folder), str(target), str(fixed.seconds))
    environment = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    outcome = run_child(command, SPEECH_S, environment)
    if outcome.answer is None:
        raise SpeechNotConverted(f"The speech model could not be converted: {outcome.reason}")
    return target.name, dict(outcome.answer)
