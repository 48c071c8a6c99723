"""Runs llama.cpp's converter in a process without network that reads one model and writes one file.

With Landlock the process can access nothing else. Other systems only limit its resources and give it a separate
home folder. Its output is accepted only after Tessera's own reader has checked it.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from devices import landlock
from devices.child_command import child_command
from devices.environment import without_secrets
from devices.process_memory import bound_memory
from engine.jobs.jobs import JobContext
from engine.library.converter.environment import VERSION, Converter, NoConverter
from engine.message_catalog.reasons import because
from quantize.convert.folder import ConversionResult
from quantize.convert.llama_cpp import ASSETS, Staged, stage
from quantize.errors import BadFile
from quantize.files.gguf_file import read_gguf
from quantize.ggml_types import GgmlType
from quantize.types import FloatType

_TYPES: Final = {"auto": "auto", "F16": "f16", "BF16": "bf16", "F32": "f32"}
_POLL_S: Final = 0.2
_LOG_TAIL_BYTES: Final = 16_384
# torch reads the number of CPUs there.
_ALSO_READ: Final = ("/sys/devices/system/cpu", "/sys/devices/system/node")


def convert_with(
    converter: Converter, folder: Path, out: Path, float_type: FloatType, control: JobContext
) -> ConversionResult:
    """Convert `folder` to the new file `out`; after an error the caller removes it.

    Raises: TesseraError: the folder is at fault. NoConverter: the converter failed. BadFile: its output is not a
    complete model. Cancelled, Paused from `control`; OSError.
    """
    with tempfile.TemporaryDirectory(prefix="tessera-convert-") as scratch:
        staged = stage(folder, Path(scratch) / "model")
        out.touch(exist_ok=False)
        _run(
            _confined(converter, staged, out, Path(scratch), _TYPES[float_type], folder.name), staged, out, control
        )
    file = read_gguf(out)
    architecture = file.metadata.get("general.architecture")
    if not file.tensors or not isinstance(architecture, str):
        raise BadFile(str(out), "llama.cpp's converter wrote no model")
    if file.file_bytes - file.end not in range(file.alignment):
        raise BadFile(str(out), f"{file.file_bytes - file.end} bytes follow the last tensor")
    return ConversionResult(
        architecture=architecture,
        float_type=_mostly(file),
        file_bytes=file.file_bytes,
        pretokenizer=str(file.metadata.get("tokenizer.ggml.pre", "")),
        num_tensors=len(file.tensors),
        notes=(f"converted by llama.cpp's own converter ({VERSION})", *staged.notes, *_unconfined()),
    )


def _unconfined() -> tuple[str, ...]:
    if landlock.version():
        return ()
    return (
        "this system has no Landlock: the converter ran without a sandbox, bounded and with no program but its own",
    )


def _mostly(file: Any) -> str:
    sizes: dict[GgmlType, int] = {}
    for tensor in file.tensors:
        if len(tensor.shape) > 1:
            sizes[tensor.ggml_type] = sizes.get(tensor.ggml_type, 0) + tensor.nbytes
    kind = max(sizes, key=lambda each: sizes[each], default=GgmlType.F32)
    return kind.name


def _confined(
    converter: Converter, staged: Staged, out: Path, scratch: Path, kind: str, name: str
) -> tuple[list[str], dict[str, str]]:
    home = scratch / "home"
    home.mkdir()
    words = [str(staged.folder), str(out), kind, name]
    argv = [str(converter.python), "-I", "-B", str(ASSETS / "run.py"), str(converter.source), *words]
    variables = {
        **dict.fromkeys(("HOME", "HF_HOME", "TMPDIR", "TEMP", "TMP", "USERPROFILE"), str(home)),
        **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"), "1"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment = without_secrets(variables)
    if not landlock.version():
        return argv, environment
    rules = {
        "argv": argv,
        "folder": str(home),
        "readable": [
            *landlock.SYSTEM_FOLDERS,
            *landlock.PROC,
            *_ALSO_READ,
            str(converter.folder),
            *_base_of(converter.python),
            str(ASSETS),
            str(staged.folder),
            *map(str, staged.reads),
        ],
        "writable": [str(home), str(out)],
        "network": False,
        "hidden": [],
        "variables": variables,
    }
    return list(child_command("devices.landlock", json.dumps(rules))), environment


def _base_of(python: Path) -> tuple[str, ...]:
    """Folder of the Python that the environment was created from."""
    real = python.resolve()
    return (str(real.parent.parent),) if real.parent.name == "bin" else (str(real.parent),)


def _run(command: tuple[list[str], dict[str, str]], staged: Staged, out: Path, control: JobContext) -> None:
    argv, environment = command
    log_path = staged.folder.parent / "said.txt"
    with (
        log_path.open("wb") as log,
        subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=staged.folder.parent
        ) as process,
    ):
        bound_memory(process.pid)
        try:
            while process.poll() is None:
                written = out.stat().st_size
                control.report("converting", written, max(staged.weight_bytes, written))
                control.wait(_POLL_S)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise NoConverter(
            because("converter_failed", why=_last_lines(log_path) or because("exit_code", code=process.returncode))
        )


def _last_lines(log_path: Path) -> str:
    with log_path.open("rb") as log:
        log.seek(max(0, log_path.stat().st_size - _LOG_TAIL_BYTES))
        lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
