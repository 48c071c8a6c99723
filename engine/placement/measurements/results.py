"""Results kept on this machine, and their exports."""

import csv
import io
import threading
import time
from pathlib import Path

import msgspec

from devices.msgspec_lock import learned
from engine.placement.measurements.keys import llama_cpp_version
from engine.placement.measurements.reports import Report, Spread


class Results:
    """A file of JSON lines, oldest first; a damaged line is passed over, never the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._newest: dict[tuple[str, str], Report] = {}

    def add(self, report: Report) -> None:
        """Append one result."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(report) + b"\n")

    def all(self, model: str | None = None) -> list[Report]:
        """Every result, or those of one model."""
        if not self._path.exists():
            return []
        found = []
        for line in self._path.read_bytes().splitlines():
            try:
                found.append(msgspec.json.decode(line, type=learned(Report)))
            except (ValueError, RecursionError):
                continue
        return [r for r in found if model is None or r.model == model]

    def newest(self, machine_key: str, shape_key: str) -> Report | None:
        """The newest result of any model of this shape on this machine; the real file's before a stand-in's."""
        with self._lock:
            try:
                found = self._path.stat()
            except OSError:
                return None
            if self._stamp != (found.st_mtime_ns, found.st_size):
                self._stamp, self._newest = (found.st_mtime_ns, found.st_size), {}
                for report in sorted(self.all(), key=lambda r: (not r.stand_in, r.started_at)):
                    if report.points and report.shape_key:
                        self._newest[report.machine_key, report.shape_key] = report
            return self._newest.get((machine_key, shape_key))

    def before(self, report: Report) -> Report | None:
        """The newest earlier result of the same model and settings on the same machine."""

        def key(r: Report) -> tuple[object, ...]:
            settings = (r.backend, r.threads, r.n_ubatch, r.flash_attn, r.type_k, r.type_v, r.n_gpu_layers)
            return r.model, r.machine_key, r.stand_in, *settings

        earlier = [r for r in self.all(report.model) if key(r) == key(report) and r.started_at < report.started_at]
        return earlier[-1] if earlier else None


# The columns of `llama-bench -o csv` that a reader of its files needs, by its names and in its order.
COLUMNS = (
    "build_commit", "cpu_info", "backends", "model_filename", "model_type", "model_size", "model_n_params",
    "n_batch", "n_ubatch", "n_threads", "type_k", "type_v", "n_gpu_layers", "flash_attn", "use_mmap",
    "n_prompt", "n_gen", "n_depth", "test_time", "avg_ts", "low_ts", "high_ts", "test",
)  # fmt: skip


def to_csv(report: Report) -> str:
    """One row a test, in llama-bench's columns; `low_ts` and `high_ts` are the extremes of the repeats."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(COLUMNS)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(report.started_at))
    common = (
        llama_cpp_version(), report.machine, report.backend, report.model, report.description,
        report.size_bytes, report.n_params, report.n_batch, report.n_ubatch, report.threads,
        report.type_k, report.type_v, report.n_gpu_layers, report.flash_attn, int(report.use_mmap),
    )  # fmt: skip

    def put(name: str, prompt: int, generated: int, depth: int, s: Spread) -> None:
        speeds = (f"{s.median:.2f}", f"{s.low:.2f}", f"{s.high:.2f}")
        rows.writerow((*common, prompt, generated, depth, when, *speeds, name))

    for point in report.points:
        put(f"pp{point.length}", point.length, 0, 0, point.prefill_tok_s)
        put(f"tg{report.tokens} @ d{point.length}", 0, report.tokens, point.length, point.decode_tok_s)
    for c in report.concurrency:
        put(f"tg{report.tokens} x{c.parallel}", 0, report.tokens, 16, c.total_tok_s)
    return out.getvalue()
