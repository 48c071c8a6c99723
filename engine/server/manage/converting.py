"""/tessera/v1/models/convert and /tessera/v1/onnx/convert: other formats of a model, made as jobs."""

from pathlib import Path

import msgspec
from fastapi import APIRouter, Request

from engine.api.converting import ConvertRequest, OnnxConvertRequest
from engine.api.jobs import Job, JobKind
from engine.paths import whole_path
from engine.quantize_jobs.convert import ToGguf, ToOnnx
from engine.server.state import server_state
from engine.server.typed import TypedRoute
from quantize.onnx.request import FixedOptions

router = APIRouter(prefix="/tessera/v1", tags=["library"], route_class=TypedRoute)


@router.post("/models/convert", status_code=202)
async def to_gguf(request: Request, body: ConvertRequest) -> Job:
    """Start making a GGUF file of a Hugging Face folder; the job's result names the model."""
    source = str(whole_path(body.source, "source"))
    task = ToGguf(source=source, out=_wanted(body.out), float_type=body.float_type)
    return _start(request, task)


@router.post("/onnx/convert", status_code=202)
async def to_onnx(request: Request, body: OnnxConvertRequest) -> Job:
    """Start making an ONNX folder of a GGUF model; the job's result names the model."""
    asked = body.fixed
    fixed = FixedOptions(context=asked.context, bits=asked.bits, seconds=asked.seconds) if asked else None
    task = ToOnnx(
        source=body.source,
        out=_wanted(body.out),
        exact=body.exact,
        all_logits=body.all_logits,
        fixed=fixed,
    )
    return _start(request, task)


def _start(request: Request, task: ToGguf | ToOnnx) -> Job:
    title = Path(task.source).name
    return server_state(request).jobs.start(JobKind.CONVERT, title, msgspec.to_builtins(task))


def _wanted(out: str | None) -> str | None:
    return None if out is None else str(whole_path(out, "out"))
