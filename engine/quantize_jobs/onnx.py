"""A GGUF model of the library, or any file, to an ONNX folder: in a child, for the file is untrusted."""

from pathlib import Path
from typing import Any

from engine.errors import InputFault
from engine.jobs import Control
from engine.library.catalogue import Catalogue
from engine.library.lookup import require
from engine.library.types import Origin
from quantize.child import run_task
from quantize.evidence import Progress
from quantize.onnx.request import FAST, FixedWish, OnnxRequest


def convert(
    source: str,
    out: Path | None,
    catalogue: Catalogue,
    control: Control,
    *,
    accuracy_level: int = FAST,
    all_logits: bool = False,
    fixed: FixedWish | None = None,
) -> tuple[str, dict[str, Any]]:
    """Convert and take the folder into the library; its id and what the converter said.

    Without `out` it lies beside the library's own models, named after the source.
    Raises: InputFault, ModelNotFound, quantize.errors.QuantizeError; Cancelled from `control`.
    """
    path = Path(source).expanduser()
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

    def tell(progress: Progress) -> None:
        control.report("converting", int(progress.done), int(progress.total))

    done: dict[str, Any] = run_task("onnx", request, tell, lambda: control.stopping)
    found = catalogue.add(target, Origin(kind="built"))
    return found.id, done
