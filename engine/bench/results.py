"""Results kept on this machine, and their exports."""

import csv
import io
from pathlib import Path

import msgspec

from engine.bench.types import Report


class Results:
    """A file of JSON lines, oldest first; a damaged line is passed over, never the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

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
                found.append(msgspec.json.decode(line, type=Report))
            except msgspec.DecodeError:
                continue
        return [r for r in found if model is None or r.model == model]

    def before(self, report: Report) -> Report | None:
        """The newest earlier result of the same model, threads and cache types."""

        def key(r: Report) -> tuple[object, ...]:
            return r.model, r.threads, r.type_k, r.type_v, r.stand_in

        earlier = [r for r in self.all(report.model) if key(r) == key(report) and r.started_at < report.started_at]
        return earlier[-1] if earlier else None


def to_csv(report: Report) -> str:
    """The columns of llama-bench that people compare: test, tokens/s and spread."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(("model", "size", "params", "backend", "threads", "test", "t/s", "low", "high"))
    common = (report.description, report.size_bytes, report.n_params, report.backend, report.threads)
    for point in report.points:
        for name, s in ((f"pp{point.length}", point.prefill_tok_s), (f"tg32@d{point.length}", point.decode_tok_s)):
            rows.writerow((*common, name, f"{s.median:.2f}", f"{s.low:.2f}", f"{s.high:.2f}"))
    for c in report.concurrency:
        s = c.total_tok_s
        rows.writerow((*common, f"tg32 x{c.parallel}", f"{s.median:.2f}", f"{s.low:.2f}", f"{s.high:.2f}"))
    return out.getvalue()
