"""A GGUF model of the library, or any file, to an ONNX folder: in a child, for the file is untrusted."""

import os
import sys
from pathlib import Path
from typing import Any, Final

from devices.backends.probe_child import run_child
from devices.child_command import child_command
from engine.core.errors import EnvironmentFault, InputFault
from engine.core.paths import installed_speech
from engine.jobs.jobs import Control
from engine.library.catalogue import Catalogue
from engine.library.lookup import require
from engine.library.types import Origin
from quantize.child import run_task
from quantize.measurements import Progress
from quantize.onnx.request import FAST, FixedOptions, OnnxRequest

# The source that means the installed speech model, and a file by which a folder of it is known.
SPEECH: Final = "speech"
SPEECH_FILE: Final = "encoder_model.ort"
# Seconds on a quiet computer; a hundred times as long on a crowded one.
SPEECH_S: Final = 300.0


class SpeechNotConverted(EnvironmentFault):
    """The child that writes the graphs failed; the message says how."""

    code = "conversion_failed"


def convert(
    source: str,
    out: Path | None,
    catalogue: Catalogue,
    control: Control,
    *,
    accuracy_level: int = FAST,
    all_logits: bool = False,
    fixed: FixedOptions | None = None,
) -> tuple[str, dict[str, Any]]:
    """Convert and take the folder into the library; its id and what the converter said.

    Without `out` it is beside the library's own models, named after the source.
    Raises: InputFault, ModelNotFound, TesseraError; Cancelled from `control`.
    """
    path = Path(source).expanduser()
    if source == SPEECH or (path / SPEECH_FILE).is_file():
        return _speech(installed_speech() if source == SPEECH else path, out, control, fixed)
    if not path.is_file():
        entry = require(catalogue, source)
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
    found = catalogue.add(target, Origin(kind="built"))
    return found.id, done


def _speech(
    folder: Path, out: Path | None, control: Control, fixed: FixedOptions | None
) -> tuple[str, dict[str, Any]]:
    """The speech model with fixed shapes; without `out` beside its own files, where the server looks for it."""
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
