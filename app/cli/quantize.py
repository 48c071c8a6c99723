"""`tessera quantize`: the best file of an open model for a number of bytes."""

import json
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.quantize_options import Duration, LockOption, Size
from engine.paths import DEFAULT_CONTEXT

if TYPE_CHECKING:
    from engine.paths import Paths
    from engine.quantize_jobs.options import QuantizeOptions
    from quantize.evidence import Progress
    from quantize.job.request import QuantizeReport

# Options that have the same name here and there.
_SAME_NAME = (
    "fit", "bpw", "mix", "tier", "rounding", "locks", "device", "threads", "verify", "time_s", "plan_only",
    "overwrite", "force",
)  # fmt: skip


@click.command(
    help="Make the best file of SOURCE (a GGUF file, a Hugging Face folder or a model of the library) for a number "
    "of bytes. Each tensor gets the precision at which this model loses least; the result is compared with "
    "llama.cpp's own mix of the same size on text it was not fitted to, and ships only if it is better."
)
@click.argument("source")
@click.argument("out", required=False, type=click.Path(path_type=Path))
@click.option("--budget", type=Size(), help="Largest size of the whole file: 4.5GB, 4200MiB, 5000000B.")
@click.option("--fit", is_flag=True, help="As large as fits the memory of this machine, with the KV cache.")
@click.option("--memory", type=Size(), help="With --fit: this much memory instead of what is free.")
@click.option(
    "--ctx",
    type=click.IntRange(256),
    default=DEFAULT_CONTEXT,
    help="With --fit: tokens of context to leave room for.",
)
@click.option("--parallel", type=click.IntRange(1), default=1, help="With --fit: sequences at a time.")
@click.option("--bpw", type=click.FloatRange(0.5, 32), help="Bits a weight on average.")
@click.option("--type", "mix", help="A stock mix or one type instead: Q4_K_M, IQ4_XS, Q8_0.")
@click.option(
    "--tier",
    type=click.Choice(["instant", "balanced", "max"]),
    help="instant measures nothing (the default with --type); balanced measures groups of tensors (the default); "
    "max each tensor, and takes longest.",
)
@click.option(
    "--time",
    "time_s",
    type=Duration(),
    help="A time to spend, instead of --tier: 10min, 90s, 2h. It is spent where it buys most.",
)
@click.option(
    "--rounding",
    type=click.Choice(["stock", "rows", "craft", "sequential"]),
    help="How weights are rounded; the default depends on the tier.",
)
@click.option("--lock", "locks", multiple=True, type=LockOption(), help="PATTERN=TYPE or PATTERN>=TYPE.")
@click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text like what the model will be used for.",
)
@click.option(
    "--imatrix",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An importance matrix of llama.cpp.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu", "npu"]),
    default="cpu",
    help="What it will run on. npu: only types that Intel's NPUs keep as they are.",
)
@click.option("--threads", type=click.IntRange(1), help="Default: the processor's cores.")
@click.option("--verify/--no-verify", default=None, help="Compare with the stock mix on held-out text.")
@click.option("--plan-only", is_flag=True, help="Show the plan and what it would take; write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--force", is_flag=True, help="Also from a source already quantized below Q8_0.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(source: str, out: Path | None, as_json: bool, **given: Any) -> None:
    """Build the request, run the job, tell what came out."""
    from engine.dispatch.resources import open_resources  # noqa: PLC0415 - the command's own imports wait until it runs
    from engine.paths import user_paths  # noqa: PLC0415
    from engine.quantize_jobs.request import beside_source, build_request  # noqa: PLC0415
    from quantize.job.execute import quantize  # noqa: PLC0415

    paths = user_paths()
    options = _options(source, given)
    options.check()
    path = _source(source, paths)
    target = out.expanduser() if out else beside_source(path, options, paths)
    request = build_request(options, path, target, paths, open_resources(paths))
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    shown = _Line(enabled=not as_json and sys.stderr.isatty())
    try:
        report = quantize(request, shown.update, stop.is_set)
    finally:
        signal.signal(signal.SIGINT, before)
        shown.clear()
    _print(report, as_json=as_json)


def _options(source: str, given: dict[str, Any]) -> "QuantizeOptions":
    from engine.quantize_jobs.options import QuantizeOptions  # noqa: PLC0415

    if sum(bool(given[k]) for k in ("budget", "fit", "bpw", "mix")) != 1:
        raise click.UsageError("Say what is wanted: one of --budget, --fit, --bpw or --type.")
    if given["time_s"] and (given["tier"] or given["rounding"] or given["mix"]):
        raise click.UsageError("--time decides how thorough to be: leave out --tier, --rounding and --type.")
    return QuantizeOptions(
        source=source,
        budget_bytes=given["budget"],
        memory_bytes=given["memory"],
        n_ctx=given["ctx"],
        n_seq=given["parallel"],
        calibration=_text(given["calibration"]),
        imatrix=_text(given["imatrix"]),
        **{k: given[k] for k in _SAME_NAME},
    )


def _source(text: str, paths: "Paths") -> Path:
    """A path, or that of a model of the library."""
    from contextlib import closing  # noqa: PLC0415

    from engine.library.catalogue import Catalogue  # noqa: PLC0415
    from engine.library.lookup import require  # noqa: PLC0415

    path = Path(text).expanduser()
    if path.exists():
        return path
    with closing(Catalogue(paths)) as catalogue:
        return require(catalogue, text).path


def _text(path: Path | None) -> str | None:
    return str(path) if path else None


def _print(report: "QuantizeReport", *, as_json: bool) -> None:
    import msgspec  # noqa: PLC0415

    from quantize.job.report import report_path, summary  # noqa: PLC0415

    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report)))
        return
    if report.out:
        click.echo(report.out)
    for line in summary(report):
        click.echo(f"  {line}")
    if report.out:
        click.echo(f"  report: {report_path(Path(report.out))}")


class _Line:
    """One line of progress on a terminal, redrawn in place."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def update(self, progress: "Progress") -> None:
        """Phase, share done, tensor, time left."""
        if not self._enabled:
            return
        share = progress.done / progress.total if progress.total else 0.0
        left = "" if progress.left_s is None else f", {progress.left_s:.0f} s left"
        text = f"{progress.phase} {share:4.0%} {progress.detail}{left}"
        sys.stderr.write(f"\r\x1b[2K{text[:100]}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Leave an empty line."""
        if self._enabled:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
