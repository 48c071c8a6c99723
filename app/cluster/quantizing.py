"""Quantization on the machines of a cluster: tasks of single groups and tensors become Ray tasks.

Surveys, Hessians, swaps and verification need the whole model and run on this computer.
"""

import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import ray

from app.cluster.types import NAMESPACE, ClusterFile
from app.evals.gate_tasks import NAMED_TASKS
from devices.errors import Cancelled, EnvironmentFault, TesseraError
from devices.msgspec_lock import learned
from engine.core.paths import Paths
from engine.core.version import __version__
from engine.job_kinds.quantize.gate import GateService
from engine.job_kinds.quantize.job import make as make_file
from engine.job_kinds.quantize.options import QuantizeOptions
from engine.jobs.jobs import JobContext, Progress
from engine.placement.memory_admission import MemoryAdmission
from engine.remotes.llama_cpp_build import kernel_name
from engine.services import EngineFacade
from quantize.child import ChildDied, Executor, Task, described, rebuilt
from quantize.job.remote_task import Bytes, Parcel, pack, perform, unpack
from quantize.job.request import QuantizeReport
from quantize.measurements import Progress as Step

# Tasks queued in addition to the running ones, so that no core is idle while a task's files are transferred.
AHEAD: Final = 2
_LOOK_S: Final = 0.5
_EACH_ITS_OWN: Final = 1 << 30


class OtherSoftware(EnvironmentFault):
    """A machine of the cluster has another version of Tessera or llama.cpp, which may produce other bytes."""

    code = "other_software"


def software() -> str:
    """Versions that must match on all machines for identical output."""
    return f"tessera {__version__}, llama.cpp {kernel_name()}, numpy {np.__version__}"


def quantize_on_cluster(
    cluster: ClusterFile, options: QuantizeOptions, paths: Paths, show: Callable[[Progress], None]
) -> QuantizeReport:
    """Create a file like the server does, with all machines of a cluster. Blocks; Ctrl-C leaves no partial file.

    The caller has set `cluster.environment()`. Raises: as `tessera quantize`; ConnectionError: no cluster responds.
    """
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    try:
        with closing(EngineFacade(paths)) as services:
            executor = Executor(RayTasks().run, _EACH_ITS_OWN)
            resources = services.placer.resources
            admission = MemoryAdmission(services.placer)
            gates = GateService(services.placer, admission, paths.cache / "quantize", NAMED_TASKS)
            done = make_file(services.catalogue, options, JobContext(show), resources, executor, lambda: gates)
        return done.report
    finally:
        ray.shutdown()


class RayTasks:
    """Runs tasks on the nodes. If a node is lost, Ray runs its task on another one."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}  # finished tasks per node
        self._files: dict[Path, Any] = {}

    def run(
        self, tasks: list[Task], on_progress: Callable[[int, Step], None], cancelled: Callable[[], bool]
    ) -> list[Any]:
        """Same as quantize.child.run_tasks, but returns no answers because results are files."""
        waiting = deque(enumerate(tasks))
        running: dict[Any, tuple[int, Parcel]] = {}
        limit = int(ray.cluster_resources().get("CPU", 1)) + AHEAD
        try:
            while waiting or running:
                if cancelled():
                    raise Cancelled
                while waiting and len(running) < limit:
                    index, task = waiting.popleft()
                    ref, parcel = self._submit(task)
                    running[ref] = index, parcel
                for ref in ray.wait(list(running), timeout=_LOOK_S)[0]:
                    index, parcel = running.pop(ref)
                    self._take(tasks[index], ref)
                    on_progress(index, Step(phase=parcel.task, done=parcel.work, total=parcel.work))
        finally:
            for ref in running:
                ray.cancel(ref)
            self._files.clear()
        return [None] * len(tasks)

    def _submit(self, task: Task) -> tuple[Any, Parcel]:
        parcel, source, read = pack(task)
        for path in set(self._files) - set(read.values()):  # consecutive tasks share files
            del self._files[path]
        for path in read.values():
            if path not in self._files:
                self._files[path] = ray.put(np.fromfile(path, np.uint8))
        refs = [self._files[path] for path in read.values()]
        remote = _perform.options(num_cpus=1, memory=parcel.memory_bytes, name=f"{parcel.task} {parcel.results[0]}")
        return remote.remote(software(), msgspec.msgpack.encode(parcel), ray.put(source), list(read), *refs), parcel

    def _take(self, task: Task, ref: Any) -> None:
        try:
            node, fault, results = ray.get(ref)
        except ray.exceptions.RayError as error:
            raise ChildDied(task[0], 1, (str(error),)) from error
        if fault is not None:
            raise rebuilt(fault)
        self.nodes[node] = self.nodes.get(node, 0) + 1
        unpack(task, results)


@ray.remote(max_retries=5)  # type: ignore[untyped-decorator]
def _perform(
    expected: str, raw: bytes, source: Bytes, names: list[str], *contents: Bytes
) -> tuple[str, dict[str, Any] | None, dict[str, bytes]]:
    """Runs on a node; return its id, an error if there is one, and the files that the task created."""
    node = ray.get_runtime_context().get_node_id()
    try:
        if software() != expected:
            raise OtherSoftware(f"a computer of the cluster has {software()}; this one has {expected}")
        parcel = msgspec.msgpack.decode(raw, type=learned(Parcel))
        with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
            return node, None, perform(parcel, source, dict(zip(names, contents, strict=True)), Path(folder))
    except (TesseraError, OSError) as error:
        return node, described(error), {}
