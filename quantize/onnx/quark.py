"""Exports an encoder in the form of AMD's Ryzen AI documentation, quantized by AMD's Quark. Experimental: untested.

Fixed shapes, opset 17, plain operators; calibrated on Tessera's calibration text. Quark needs another version of
onnx than Tessera, so it runs in a separate environment: `TESSERA_QUARK_PYTHON` names its Python. Source of the
form: Ryzen AI Software 1.4 to 1.8, "Model Compilation and Deployment" (opset 17) and "Model Quantization".
"""

import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from tokenizers import Tokenizer

from devices.atomic_file import scratch_folder
from devices.child_command import interpreter
from devices.environment import without_secrets
from devices.errors import TesseraError
from quantize.errors import InvalidOption
from quantize.files.gguf_split import read_gguf_model
from quantize.onnx import encoder
from quantize.onnx.graph import GraphWriter
from quantize.types import CALIBRATION

Form = Literal["a8w8", "a16w8", "bf16", "xint8", "float"]
OPSET: Final = 17
UNTRIED: Final = "experimental: no AMD NPU was tried by this project"
# Texts for the ranges of activations; Quark stores the results of each in memory.
_TEXTS: Final = 32
_TIMEOUT_S: Final = 1800.0
_CHILD: Final = """
import sys
import numpy as np
from onnxruntime.quantization.calibrate import CalibrationDataReader
import quark.onnx as quark

class Texts(CalibrationDataReader):
    def __init__(self, path):
        held = np.load(path)
        count = len(held["input_ids"])
        self._left = iter([{name: held[name][i : i + 1] for name in held.files} for i in range(count)])
    def get_next(self):
        return next(self._left, None)

source, texts, out, form = sys.argv[1:5]
config = getattr(quark, form.upper() + "_QCONFIG")
quark.ModelQuantizer(config).quantize_model(source, out, Texts(texts))
"""


class QuarkFailed(TesseraError):
    """Quark is missing or failed; the message says which, and what to do."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an export."""

    folder: str
    form: Form
    graph_bytes: int
    notices: tuple[str, ...]


def quark_python() -> str:
    """Path of a Python that has Quark. Raises: QuarkFailed: none."""
    program = os.environ.get("TESSERA_QUARK_PYTHON")
    if program:
        if Path(program).is_file():
            return program
        raise QuarkFailed(f"TESSERA_QUARK_PYTHON names {program}, which does not exist")
    if importlib.util.find_spec("quark") is not None:
        return interpreter()[0]
    raise QuarkFailed(
        "AMD's Quark is not here: make an environment of its own (python -m venv quark; quark/bin/pip install "
        "amd-quark onnxruntime torch) and let TESSERA_QUARK_PYTHON name its Python; --form float needs no Quark"
    )


def export(source: Path, out: Path, *, tokens: int = 128, form: Form = "float") -> Exported:
    """Write an embedding or rerank model as a folder for AMD's compiler; it appears only when it is complete.

    With `form` float, AMD's compiler quantizes (to 16-bit floats).

    Raises: InvalidOption: the folder exists. UnsupportedModel, BadFile: not an encoder. QuarkFailed.
    """
    if out.exists():
        raise InvalidOption("OUT", f"{out} exists already; choose another name")
    python = quark_python() if form != "float" else ""
    model = read_gguf_model(source)
    shape = encoder.encoder_shape(model)
    words = encoder.wordpiece_json(model)
    tokens = min(tokens, shape.context)
    with scratch_folder(out.parent, out.name) as work:
        folder = work / "out"
        folder.mkdir()
        plain = work / "float" if python else folder
        plain.mkdir(exist_ok=True)
        with (plain / "model.onnx.data").open("wb") as data:
            graph = GraphWriter(data, "model.onnx.data", OPSET)
            encoder.EncoderGraph(model, shape, graph, tokens, contrib=False).build()
        graph.save(plain / "model.onnx")
        if python:
            np.savez(plain / "texts.npz", **calibration_texts(words, tokens))
            _quantize(python, plain, folder / "model.onnx", form)
        for name, value in (
            ("tokenizer.json", words),
            ("config.json", encoder.encoder_config(shape, len(words["model"]["vocab"]))),
        ):
            (folder / name).write_bytes(msgspec.json.encode(value))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_bytes(msgspec.json.encode(encoder.pooling_config(shape)))
        folder.rename(out)
    size = sum(path.stat().st_size for path in out.glob("model.onnx*"))
    notice = f"One text of at most {tokens} tokens at once; {form}; {UNTRIED}."
    return Exported(folder=str(out), form=form, graph_bytes=size, notices=(notice,))


def calibration_texts(words: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Inputs of the encoder for texts from the calibration file, (texts, tokens) int32 each."""
    tokenizer = Tokenizer.from_str(msgspec.json.encode(words).decode())
    tokenizer.enable_truncation(tokens)
    text = CALIBRATION.read_text(encoding="utf-8")
    step = len(text) // _TEXTS
    ids, mask, kinds = (np.zeros((_TEXTS, tokens), np.int32) for _ in range(3))
    for i in range(_TEXTS):
        encoded = tokenizer.encode(text[i * step : i * step + 8 * tokens])
        ids[i, : len(encoded.ids)], mask[i, : len(encoded.ids)] = encoded.ids, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}


def _quantize(python: str, plain: Path, out: Path, form: str) -> None:
    command = [python, "-c", _CHILD, str(plain / "model.onnx"), str(plain / "texts.npz"), str(out), form]
    environment = {k: v for k, v in without_secrets().items() if k != "PYTHONPATH"} | {"ORT_DISABLE_TELEMETRY": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_S, check=False, env=environment, cwd=plain
        )
    except subprocess.TimeoutExpired:
        raise QuarkFailed(f"Quark did not end within {_TIMEOUT_S / 60:.0f} minutes") from None
    except OSError as error:
        raise QuarkFailed(f"{python} could not be started: {error.strerror}") from error
    if done.returncode != 0 or not out.is_file():
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it gave no reason"]
        raise QuarkFailed(f"Quark failed: {last[0][:300]}")
