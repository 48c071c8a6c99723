"""A task for groups or tensors with all its inputs, so that any machine can run it in an empty folder.

The inputs include a small GGUF file with the needed tensors, so that the machine does not need the model.
"""

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.child import Task, run_task
from quantize.errors import BadFile
from quantize.files.gguf_write import TensorSlot, header, padded
from quantize.files.measurement_folder import SharedInputGroup, WorkFolder, write_json, write_whole
from quantize.gptq.tensors import TensorsRequest, packed_path
from quantize.job.tasks import task_named
from quantize.measure.rounding_error import ErrorsRequest
from quantize.measure.run import FACTOR_BYTES
from quantize.measurements import MeasureRequest, decode, encode
from quantize.native.source_weights import SourceWeights
from quantize.types import Rounding

Bytes = npt.NDArray[np.uint8]

# Memory of a task without its largest Hessian: chunks of weights and the process.
_PROCESS_BYTES: Final = 512 << 20
_SOURCE, _TEXT, _IMATRIX = "source.gguf", "text", "imatrix.gguf"


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """One task, ready to run on another machine.

    `request` is its request as JSON. `groups` are the groups it covers, `results` the names of its output files in
    the cache folder. `memory_bytes` is its maximum memory, `work` its share of the total work, in the unit of its
    progress.
    """

    task: str
    request: bytes
    groups: tuple[SharedInputGroup, ...]
    results: tuple[str, ...]
    memory_bytes: int
    work: float


def pack(task: Task) -> tuple[Parcel, Bytes, dict[str, Path]]:
    """The parcel of a task, the part of the model it reads, and its other inputs by name in the cache folder.

    Call it in a process that may memory-map the source. Raises: BadFile: a tensor name is not in the source.
    """
    name, request = task
    assert isinstance(request, ErrorsRequest | TensorsRequest)
    measure = _measure(request)
    folder = WorkFolder.open(measure)
    source = SourceWeights(measure.source)
    if isinstance(request, ErrorsRequest):
        groups = tuple(g for g in folder.groups() or () if g.name in request.groups)
        tensors = tuple(n for g in groups for n in g.members)
        results = [folder.part("errors", g.name, ".json") for g in groups]
        work, moments, imatrix = float(len(groups)), True, None
    else:
        tensors = request.names
        groups = tuple(g for g in folder.groups() or () if set(g.members) & set(tensors))
        results = [packed_path(folder, request.round, n) for n in tensors]
        work, moments = (
            float(sum(source.info(n).num_values for n in tensors)),
            request.round.rounding != Rounding.STOCK,
        )
        imatrix = None if moments else request.round.imatrix
    read = {_IMATRIX: imatrix} if imatrix else {}
    for group in (g for g in groups if g.seen and moments):
        for suffix in (".npy", ".diagonal.npz"):
            path = folder.part("moments", group.name, suffix)
            read[path.relative_to(folder.path).as_posix()] = path
    parcel = Parcel(
        task=name,
        request=encode(request),
        groups=groups,
        results=tuple(p.relative_to(folder.path).as_posix() for p in results),
        memory_bytes=_PROCESS_BYTES + FACTOR_BYTES * max((g.width for g in groups), default=0) ** 2,
        work=work,
    )
    return parcel, _part_of(source, tensors), read


def perform(parcel: Parcel, source: Bytes, read: dict[str, Bytes], scratch: Path) -> dict[str, bytes]:
    """Run a task in an empty folder and return its output files by name.

    Blocks; native code runs in a child process.

    Raises: errors of the task; ChildDied.
    """
    kind = task_named(parcel.task)[0]
    (scratch / _SOURCE).write_bytes(source.data)
    (scratch / _TEXT).write_bytes(b"")
    for name in (n for n in read if n == _IMATRIX):
        (scratch / name).write_bytes(read[name].data)
    request = _at_home(decode(parcel.request, kind), scratch)
    folder = WorkFolder.open(_measure(request))
    write_json(folder.path / "groups.json", parcel.groups)
    for name in (n for n in read if n != _IMATRIX):
        (folder.path / name).write_bytes(read[name].data)
    run_task(parcel.task, request, lambda _progress: None, lambda: False)
    return {name: (folder.path / name).read_bytes() for name in parcel.results}


def unpack(task: Task, results: dict[str, bytes]) -> None:
    """Store the results of a remote task where a local task would have written them. Raises: DiskFull."""
    request = task[1]
    assert isinstance(request, ErrorsRequest | TensorsRequest)
    folder = WorkFolder.open(_measure(request))
    for name, data in results.items():
        if name.partition("/")[0] not in {"errors", "packed"} or (folder.path / name).parent.parent != folder.path:
            raise BadFile(name, "no result of this task")
        write_whole(folder.path / name, data)


def _measure(request: ErrorsRequest | TensorsRequest) -> MeasureRequest:
    return request.measure if isinstance(request, ErrorsRequest) else request.round.measure


def _at_home(request: Any, scratch: Path) -> Any:
    """The same request for the files in `scratch`."""
    measure = msgspec.structs.replace(
        _measure(request),
        source=scratch / _SOURCE,
        calibration=scratch / _TEXT,
        cache_dir=scratch / "cache",
        source_sha256="",
        calibration_sha256="",
        threads=1,
        gpu_layers=0,
    )
    if isinstance(request, ErrorsRequest):
        return msgspec.structs.replace(request, measure=measure)
    imatrix = scratch / _IMATRIX if (scratch / _IMATRIX).exists() else None
    return msgspec.structs.replace(
        request, round=msgspec.structs.replace(request.round, measure=measure, imatrix=imatrix)
    )


def _part_of(source: SourceWeights, names: tuple[str, ...]) -> Bytes:
    """A GGUF file with these tensors, byte for byte as in the source."""
    infos = [(n, source.info(n)) for n in names]
    head = header({}, [TensorSlot(n, i.shape, i.ggml_type) for n, i in infos])
    whole = np.zeros(len(head) + sum(padded(i.nbytes) for _, i in infos), np.uint8)
    whole[: len(head)] = np.frombuffer(head, np.uint8)
    at = len(head)
    for name in names:
        raw = source.raw(name)
        whole[at : at + len(raw)] = raw
        at += padded(len(raw))
    return whole
