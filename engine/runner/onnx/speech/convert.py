"""Child process: a speech model as the folder of fixed shapes that NPUs want.

Usage: python -m engine.runner.onnx.speech.convert FOLDER OUT SECONDS; answers with one JSON object.
"""

import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from devices.child_answer import write_answer
from engine.runner.onnx.speech.moonshine import SPARE_TOKENS, TOKENS_A_SECOND
from engine.runner.onnx.speech.weights import read_weights
from engine.runner.onnx_libraries import reason
from quantize.onnx.request import SPEECH_FACTS as FACTS
from quantize.onnx.speech import DATA, write_speech

_BESIDE: Final = ("tokenizer.bin", "silero_vad.onnx")


def convert(folder: Path, out: Path, seconds: float) -> dict[str, Any]:
    """Write the folder; it appears only when it is whole. One that is there with its facts is taken as it is."""
    notice = f"At most {seconds:g} s of sound at once; longer speech is cut where a breath is."
    done = {"folder": str(out), "architecture": "moonshine", "notices": [notice], "cached": False}
    if (out / FACTS).is_file():
        return {**done, "cached": True, "data_bytes": (out / DATA).stat().st_size}
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        tokens = math.ceil(seconds * TOKENS_A_SECOND) + SPARE_TOKENS
        write_speech(read_weights(folder), partial, seconds=seconds, tokens=tokens)
        for name in _BESIDE:
            shutil.copyfile(folder / name, partial / name)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {**done, "data_bytes": (out / DATA).stat().st_size}


if __name__ == "__main__":
    try:
        write_answer(convert(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
    except Exception as error:  # noqa: BLE001 - ONNX Runtime has many; the parent reports it
        write_answer({"error": reason(error)})
        sys.exit(1)
