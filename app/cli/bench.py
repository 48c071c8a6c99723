"""`tessera bench`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from engine.bench.types import Report


class Numbers(click.ParamType[tuple[int, ...]]):
    """Positive numbers separated by commas."""

    name = "N,N,…"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """`512,2048` as (512, 2048)."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 512,2048", param, ctx)
        if not found or min(found) < 1 or max(found) > 1 << 20:
            self.fail(f"{value!r} has numbers out of range", param, ctx)
        return found


@click.command(
    help="Measure MODEL (an id or a GGUF file) on this machine, or a stand-in of a SHAPE not downloaded."
)
@click.argument("model", required=False)
@click.option("--shape", help="Measure random weights of this shape instead, such as qwen3-8b; 'list' shows all.")
@click.option(
    "--like", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A stand-in of this file."
)
@click.option("--type", "mix", default="Q4_K_M", show_default=True, help="Mix of the stand-in.")
@click.option(
    "--lengths", type=Numbers(), default="128,512,2048", show_default=True, help="Prompt lengths in tokens."
)
@click.option("--parallel", type=Numbers(), default="1,4", show_default=True, help="Sequences at once.")
@click.option("--repeats", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: physical cores.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print llama-bench's columns as CSV.")
def command(
    model: str | None,
    shape: str | None,
    like: Path | None,
    mix: str,
    lengths: tuple[int, ...],
    parallel: tuple[int, ...],
    repeats: int,
    threads: int | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Measure, store and print."""
    import asyncio  # noqa: PLC0415 - the command's own imports wait until it runs
    import tempfile  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    from engine.bench import results, shapes, standin  # noqa: PLC0415
    from engine.bench.run import bench  # noqa: PLC0415
    from engine.paths import user_paths  # noqa: PLC0415
    from engine.runner.protocol import LoadSettings  # noqa: PLC0415
    from engine.server.models import usable_cores  # noqa: PLC0415

    if shape == "list":
        click.echo("\n".join(shapes.SHAPES))
        return
    if sum(x is not None for x in (model, shape, like)) != 1:
        raise click.UsageError("Give a MODEL, or --shape, or --like.")

    def step(text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{text}", nl=False, err=True)

    with tempfile.TemporaryDirectory(dir=_scratch(user_paths().cache)) as folder:
        if model is not None:
            path, name = _model_path(model), model
        else:
            path, name = Path(folder) / "stand-in.gguf", like.name if like else f"{shape} {mix}"

            def written(done: int, total: int) -> None:
                step(f"writing a stand-in {done / total:.0%}")

            standin.write_in_child(path, like=like, shape=shape or "", mix=mix, on_progress=written)
        settings = LoadSettings(path=str(path), n_threads=threads or usable_cores(), n_ubatch=512)
        report = asyncio.run(
            bench(
                settings,
                model=name,
                lengths=lengths,
                parallel=parallel,
                repeats=repeats,
                stand_in=model is None,
                step=step,
            )
        )
    step("")
    store = results.Results(user_paths().state / "bench.jsonl")
    before = store.before(report)
    store.add(report)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    elif as_csv:
        click.echo(results.to_csv(report), nl=False)
    else:
        _show(report, before)


def _scratch(cache: Path) -> Path:
    """Stand-ins are as large as the model: they belong on the cache's disk, not into a small /tmp."""
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _model_path(model: str) -> Path:
    """The file of a model of the library, or a file."""
    from engine.errors import ModelNotFound  # noqa: PLC0415 - the command's own imports wait until it runs
    from engine.library.catalogue import Catalogue  # noqa: PLC0415
    from quantize.errors import QuantizeError  # noqa: PLC0415
    from quantize.gguf_file import read_gguf  # noqa: PLC0415

    path = Path(model)
    if not path.is_file():
        entry = Catalogue().get(model)
        if entry is None:
            raise ModelNotFound(model)
        path = entry.path
    try:
        read_gguf(path)
    except QuantizeError as error:
        raise click.ClickException(str(error)) from error
    return path


def _show(report: "Report", before: "Report | None") -> None:
    from rich.console import Console  # noqa: PLC0415 - only for people
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    console.print(
        f"{report.model}: {report.description}, {report.size_bytes / 2**30:.2f} GiB, {report.threads} threads"
    )
    if report.stand_in:
        console.print("measured on a stand-in with random weights")
    table = Table("prompt", "prefill tok/s", "decode tok/s", "first token")
    known = {p.length: p for p in before.points} if before else {}
    for p in report.points:
        was = known.get(p.length)
        change = f" ({p.decode_tok_s.median / was.decode_tok_s.median - 1:+.0%})" if was else ""
        table.add_row(
            str(p.length),
            f"{p.prefill_tok_s.median:.1f} ({p.prefill_tok_s.low:.1f}-{p.prefill_tok_s.high:.1f})",
            f"{p.decode_tok_s.median:.1f} ({p.decode_tok_s.low:.1f}-{p.decode_tok_s.high:.1f}){change}",
            f"{p.ttft_s.median * 1000:.0f} ms",
        )
    console.print(table)
    for c in report.concurrency:
        console.print(f"{c.parallel} at once: {c.total_tok_s.median:.1f} tok/s together")
    console.print(f"loaded in {report.load_s:.1f} s, {report.rss_bytes / 2**20:.0f} MiB resident")
    if report.drift < 0.9:  # noqa: PLR2004 - see Report.drift
        console.print(f"The machine got slower while measuring ({report.drift:.0%}): heat, or other programs.")
