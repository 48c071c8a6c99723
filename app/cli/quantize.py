"""`tessera quantize`: creates the best file of an open model for a given size."""

import json
import shlex
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.echo import echo
from app.cli.progress import JobLine
from app.cli.quantize_options import Duration, LockOption, RoundingOption, Size, check_plan, parse_gate
from app.cli.settings_defaults import Number, OutputFile, TokenCount
from engine.services import DEFAULT_CONTEXT

if TYPE_CHECKING:
    from engine.api.quantizing import QuantizeOptions
    from quantize.job.request import QuantizeReport

EXIT_VETOED = 1
EXIT_STOPPED = 130  # the shells' exit code for Ctrl-C, as elsewhere
_CONSENT = (
    "The programs that the model writes will be run on this computer, in a sandbox without network and without "
    "your files. Continue?"
)
# Options with the same name on the command line and in the request.
_SAME_NAME = (
    "fit", "bpw", "mix", "tier", "rounding", "device", "threads", "gpu_layers", "verify", "time_s", "overwrite",
    "force",
)  # fmt: skip


@click.command(
    help="Quantize SOURCE (a GGUF file, a Hugging Face folder or a model of the library) to a given size. Each "
    "tensor gets the precision at which this model loses least. The result is compared with llama.cpp's "
    "preset of the same size on held-out text, and the better file is written."
)
@click.argument("source")
@click.argument("out", required=False, type=click.Path(path_type=Path))
@click.option("--budget", type=Size(), help="Largest size of the whole file: 4.5GB, 4200MiB, 5000000B.")
@click.option("--fit", is_flag=True, help="As large as fits the memory of this machine, with the KV cache.")
@click.option("--memory", type=Size(), help="With --fit: use this much memory instead of the free memory.")
@click.option(
    "--ctx",
    type=TokenCount(256),
    default=DEFAULT_CONTEXT,
    help="With --fit: context length to reserve memory for.",
)
@click.option("--parallel", type=click.IntRange(1), default=1, help="With --fit: sequences at a time.")
@click.option("--bpw", type=Number(0.5, 32), help="Average bits per weight.")
@click.option("--type", "mix", help="A llama.cpp preset or one type instead: Q4_K_M, IQ4_XS, Q8_0.")
@click.option(
    "--tier",
    type=click.Choice(["instant", "balanced", "max"], case_sensitive=False),
    help="instant plans without measuring tensors (the default with --type); balanced measures groups of them (the "
    "default); max measures each tensor and takes longest. Each compares the file with the llama.cpp preset "
    "unless --no-verify is used. LoRA adapters of the original work with files of balanced and max in "
    "Tessera, but not in other programs.",
)
@click.option(
    "--time",
    "time_s",
    type=Duration(),
    help="Time to spend, instead of --tier: 10min, 90s, 2h.",
)
@click.option(
    "--rounding",
    type=RoundingOption(),
    help="How weights are rounded; the default depends on the tier.",
)
@click.option("--lock", "locks", multiple=True, type=LockOption(), help="PATTERN=TYPE or PATTERN>=TYPE.")
@click.option(
    "--calibration",
    multiple=True,
    metavar="PATH|chats",
    help="Calibration text similar to the model's later use: files, folders, a project, or your own chats (after "
    "a question). The report shows the gain on this text and on general text.",
)
@click.option(
    "--gate",
    metavar="certify|evaluate|FILE",
    help="Quality gate: run the same tasks on the original and the new file: tool calls, programs, or your own "
    "(JSON Lines of prompt and answer or regex). A file that does clearly worse is discarded.",
)
@click.option(
    "--yes",
    "-y",
    is_flag=True,
    help="Do not ask before reading chats, running the model's programs or downloading llama.cpp's converter.",
)
@click.option(
    "--imatrix",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An importance matrix of llama.cpp.",
)
@click.option(
    "--export-plan",
    type=OutputFile(),
    help="Also write a plan that reproduces the file from the same source.",
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Use an exported plan instead of a size. The result is measured here before it is saved.",
)
@click.option(
    "--plan-key",
    "plan_keys",
    multiple=True,
    help="With --plan: minisign public key of its author; PLAN.minisig must match one of these.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu", "npu"], case_sensitive=False),
    default="cpu",
    help="Device the file is for. npu: only types that Intel's NPUs run without conversion.",
)
@click.option(
    "--download",
    is_flag=True,
    help="SOURCE is owner/name on the hub: download its original first (owner/name:F16 for one file).",
)
@click.option("--delete-source", is_flag=True, help="With --download: delete the original afterwards.")
@click.option("--threads", type=click.IntRange(1), help="Default: the number of CPU cores.")
@click.option(
    "--gpu-layers",
    type=click.IntRange(0),
    help="GPU layers while measuring and comparing; 0: none. Default: as when loading.",
)
@click.option("--verify/--no-verify", default=None, help="Compare with the llama.cpp preset on held-out text.")
@click.option(
    "--quick-test",
    is_flag=True,
    help="First measure the model's sensitivity for some seconds, for a narrower range of the expected loss.",
)
@click.option("--plan-only", is_flag=True, help="Show the plan and its costs; write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option(
    "--force",
    is_flag=True,
    help="Accept a source already quantized below Q8_0, and a result that differs from the plan.",
)
@click.option(
    "--cluster",
    is_flag=True,
    help="Round on all computers of this cluster (tessera cluster), with the same result.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(source: str, out: Path | None, as_json: bool, **options: Any) -> None:
    """Build the request, run the job, and print the result."""
    import msgspec

    from app.cli.calibration_option import calibration_options
    from app.evals.gate_tasks import NAMED_TASKS
    from engine.services import EngineFacade

    if options["plan_keys"]:
        check_plan(options["plan_file"], list(options["plan_keys"]))
    if options["gate"] == "evaluate" and not options["yes"] and not options["plan_only"]:
        click.confirm(_CONSENT, abort=True, err=True)
    request = _request(source, options)
    request.check()
    if options["quick_test"]:
        _quick_test(request.model, quiet=as_json)
    with (
        closing(EngineFacade()) as services,
        calibration_options(options["calibration"], services, ask=not options["yes"]) as texts,
    ):
        target = _absolute(out)
        if target is None and not request.download:
            target = str(services.quantize_target(request))
        request = msgspec.structs.replace(request, out=target, **texts)
        plan_only = options["plan_only"]
        create = _create_on_cluster if options["cluster"] else partial(_create_on_server, ask=not options["yes"])
        report = services.quantize_plan(request, NAMED_TASKS) if plan_only else create(request, quiet=as_json)
    _print(report, as_json=as_json)
    if report.out is None and not plan_only:
        sys.exit(EXIT_VETOED)
    if report.out is not None and not as_json and not plan_only:
        _print_use(Path(report.out))
    if report.stopped:
        sys.exit(EXIT_STOPPED)


def _print_use(path: Path) -> None:
    from contextlib import closing

    from engine.services import EngineFacade

    with closing(EngineFacade()) as services:
        listed = next((entry.id for entry in services.models() if str(path) in {f.path for f in entry.files}), None)
    if listed is not None:
        echo(f"  use it: tessera chat {listed}")
    else:
        echo(f"  use it: tessera models link {shlex.quote(str(path))}")


def _quick_test(model: str, *, quiet: bool) -> None:
    """Let the server measure what rounding all weights to 4 bits loses; plans use the result."""
    from app.cli.job_line import finish, this_computers_server
    from engine.api.jobs import Measured
    from engine.api.measuring import QuickTestRequest

    line = JobLine(enabled=not quiet and sys.stderr.isatty())
    try:
        with this_computers_server() as client:
            finish(client, client.quick_test(QuickTestRequest(model=model)), Measured, line.update)
    finally:
        line.clear()


def _create_on_server(request: "QuantizeOptions", *, quiet: bool, ask: bool) -> "QuantizeReport":
    """Let the server create the file; return the report.

    If only llama.cpp's converter knows the model's family, the folder is first converted into a library file.
    """
    import msgspec

    from app.cli.converter import NEEDED, with_converter
    from app.cli.job_line import finish, this_computers_server
    from app.client import JobFailed
    from engine.api.converting import ConvertedFile, ConvertRequest
    from engine.api.jobs import Quantized

    line = JobLine(enabled=not quiet and sys.stderr.isatty())
    try:
        with this_computers_server() as client:
            try:
                return finish(
                    client, client.quantize(request), Quantized, line.update, on_interrupt="finish"
                ).report
            except JobFailed as error:
                if error.code != NEEDED:
                    raise
            line.clear()

            def converted() -> ConvertedFile:
                return finish(
                    client, client.convert(ConvertRequest(source=request.model)), ConvertedFile, line.update
                )

            conversion = with_converter(client, converted, ask=ask)
            echo(f"{conversion.model} was made by llama.cpp's converter: {conversion.path}", err=True)
            request = msgspec.structs.replace(request, model=conversion.path)
            return finish(client, client.quantize(request), Quantized, line.update, on_interrupt="finish").report
    finally:
        line.clear()


def _create_on_cluster(request: "QuantizeOptions", *, quiet: bool) -> "QuantizeReport":
    """Let the computers of the cluster create the file; return the report."""
    from app.cli.cluster import require_cluster
    from engine.services import user_paths

    cluster = require_cluster()
    from app.cluster.quantizing import quantize_on_cluster

    line = JobLine(enabled=not quiet and sys.stderr.isatty())
    try:
        return quantize_on_cluster(cluster, request, user_paths(), line.update)
    finally:
        line.clear()


def _request(source: str, options: dict[str, Any]) -> "QuantizeOptions":
    from engine.api.quantizing import LockRequest, QuantizeOptions

    if sum(bool(options[k]) for k in ("budget", "fit", "bpw", "mix", "plan_file")) != 1:
        raise click.UsageError("Name a target: one of --budget, --fit, --bpw, --type or --plan.")
    if options["plan_file"] and any(options[k] for k in ("tier", "rounding", "time_s", "locks")):
        raise click.UsageError("--plan already contains --tier, --rounding, --time and --lock: remove them.")
    if options["time_s"] and (options["tier"] or options["rounding"] or options["mix"]):
        raise click.UsageError("--time cannot be combined with --tier, --rounding and --type.")
    if options["delete_source"] and not options["download"]:
        raise click.UsageError("--delete-source deletes what --download fetched: give both.")
    if options["download"] and (options["plan_only"] or options["cluster"] or options["quick_test"]):
        raise click.UsageError("--download cannot be combined with --plan-only, --cluster and --quick-test.")
    path = Path(source).expanduser()
    return QuantizeOptions(
        model=str(path.absolute()) if path.exists() and not options["download"] else source,
        download=options["download"],
        keep_source=not options["delete_source"],
        budget_bytes=options["budget"],
        memory_bytes=options["memory"],
        n_ctx=options["ctx"],
        n_seq=options["parallel"],
        locks=tuple(LockRequest(pattern=p, type=t, at_least=least) for p, t, least in options["locks"]),
        imatrix=_absolute(options["imatrix"]),
        plan_file=_absolute(options["plan_file"]),
        export_plan=_absolute(options["export_plan"]),
        gate=parse_gate(options["gate"]),
        **{k: options[k] for k in _SAME_NAME},
    )


def _absolute(path: Path | None) -> str | None:
    """Absolute path, because the server has another working folder."""
    return str(path.expanduser().absolute()) if path else None


def _print(report: "QuantizeReport", *, as_json: bool) -> None:
    import msgspec

    from quantize.files.provenance import report_path
    from quantize.job.report import summary

    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report)))
        return
    if report.out:
        echo(report.out)
    for line in summary(report):
        echo(f"  {line}")
    if report.out:
        echo(f"  report: {report_path(Path(report.out))}")
