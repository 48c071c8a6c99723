"""/tessera/v1/models/convert and /tessera/v1/onnx/convert: convert models to other formats, as jobs.

/tessera/v1/converter: llama.cpp's converter, for architectures that Tessera's converter does not support.
"""

import asyncio
from pathlib import Path

from fastapi import APIRouter, Request

from engine.api.converting import ConverterRemoved, ConverterState, ConvertRequest, OnnxConvertRequest
from engine.api.jobs import Job, JobKind
from engine.core.errors import EnvironmentFault
from engine.core.paths import whole_path
from engine.job_kinds.quantize.convert import Fetch, ToGguf, ToOnnx
from engine.message_catalog.reasons import because
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state
from quantize.onnx.request import FixedOptions

router = APIRouter(prefix="/tessera/v1", tags=["library"], route_class=TypedRoute)


@router.post("/models/convert", status_code=202)
async def to_gguf(request: Request, body: ConvertRequest) -> Job:
    """Start converting a Hugging Face folder to a GGUF file; the job's result names the model."""
    source = str(whole_path(body.source, "source"))
    task = ToGguf(source=source, out=_absolute_out(body.out), float_type=body.float_type)
    return _start(request, task)


@router.post("/onnx/convert", status_code=202)
async def to_onnx(request: Request, body: OnnxConvertRequest) -> Job:
    """Start converting a GGUF model to an ONNX folder; the job's result names the model."""
    options = body.fixed
    fixed = FixedOptions(context=options.context, bits=options.bits, seconds=options.seconds) if options else None
    task = ToOnnx(
        source=body.source,
        out=_absolute_out(body.out),
        exact=body.exact,
        all_logits=body.all_logits,
        fixed=fixed,
    )
    return _start(request, task)


@router.get("/converter")
async def converter(request: Request) -> ConverterState:
    """Whether llama.cpp's converter is installed, and what an installation takes."""
    return await asyncio.to_thread(_state, request)


@router.post("/converter", status_code=202)
async def fetch_converter(request: Request) -> Job:
    """Start downloading llama.cpp's converter; this request counts as consent."""
    return server_state(request).jobs.start(JobKind.CONVERT, "llama.cpp's converter", Fetch())


@router.delete("/converter")
async def remove_converter(request: Request) -> ConverterRemoved:
    """Delete llama.cpp's converter and its packages; refused while a conversion runs."""
    from engine.library.converter.environment import remove

    jobs = server_state(request).jobs
    if any(job.kind is JobKind.CONVERT and job.state in {"queued", "running"} for job in jobs.jobs()):
        raise EnvironmentFault(because("converter_in_use"))
    freed = await asyncio.to_thread(remove, _folder(request))
    return ConverterRemoved(freed_bytes=freed)


def _state(request: Request) -> ConverterState:
    from engine.library.converter import environment
    from quantize.convert.llama_cpp import supported_architectures

    folder = _folder(request)
    return ConverterState(
        installed=environment.installed(folder) is not None,
        version=environment.VERSION,
        path=str(folder),
        bytes=environment.size_on_disk(folder),
        download_bytes=environment.DOWNLOAD_BYTES,
        disk_bytes=environment.DISK_BYTES,
        seconds=environment.SECONDS,
        architectures=tuple(sorted(supported_architectures())),
    )


def _start(request: Request, task: ToGguf | ToOnnx) -> Job:
    title = Path(task.source).name
    return server_state(request).jobs.start(JobKind.CONVERT, title, task)


def _absolute_out(out: str | None) -> str | None:
    return None if out is None else str(whole_path(out, "out"))


def _folder(request: Request) -> Path:
    return server_state(request).paths.converter
