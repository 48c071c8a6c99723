"""`tessera bench`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.bench_job import Numbers, measure, source_of
from app.cli.echo import echo, print_json
from app.cli.settings_defaults import OutputFile

if TYPE_CHECKING:
    from engine.api.jobs import Report


@click.command(
    help="Measure the speed of MODEL (an id or a GGUF file), or of random weights in a SHAPE without a download."
)
@click.argument("model", required=False)
@click.option("--shape", help="Measure random weights of this shape instead, such as qwen3-8b; 'list' shows all.")
@click.option(
    "--like",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Random weights of the shape of this file.",
)
@click.option(
    "--hub",
    help="Random weights of the shape of a file on the hub, owner/name:Q4_K_M; only its header is downloaded.",
)
@click.option("--type", "mix", default="Q4_K_M", show_default=True, help="Preset or type of --shape.")
@click.option(
    "--lengths", type=Numbers(), default="128,512,2048", show_default=True, help="Prompt lengths in tokens."
)
@click.option(
    "--parallel", type=Numbers(), default="1,4", show_default=True, help="Numbers of concurrent sequences."
)
@click.option(
    "--tokens",
    type=click.IntRange(1, 4096),
    default=32,
    show_default=True,
    help="Tokens generated after each prompt.",
)
@click.option("--repeats", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: the number that Tessera or autotune chose.")
@click.option(
    "--types", "prices", is_flag=True, help="Measure the cost of each quantization type on this computer instead."
)
@click.option("--places", is_flag=True, help="Measure MODEL on each device that can run it, to use the fastest.")
@click.option("--history", is_flag=True, help="Show earlier measurements of MODEL, or all.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print llama-bench's columns as CSV.")
@click.option(
    "--picture",
    type=OutputFile(),
    help="Draw the result as a chart in this SVG file.",
)
def command(
    model: str | None,
    shape: str | None,
    like: Path | None,
    hub: str | None,
    mix: str,
    lengths: tuple[int, ...],
    parallel: tuple[int, ...],
    tokens: int,
    repeats: int,
    threads: int | None,
    prices: bool,
    places: bool,
    history: bool,
    as_json: bool,
    as_csv: bool,
    picture: Path | None,
) -> None:
    """Measure, store and print."""
    if shape == "list":
        from engine.services import EngineFacade

        shapes = EngineFacade().shapes()
        print_json({"shapes": shapes}) if as_json else echo("\n".join(shapes))
        return
    if history:
        _history(model, as_json=as_json)
        return
    if prices:
        _price_types(as_json=as_json)
        return
    if places:
        _compare_places(model, as_json=as_json)
        return
    from engine.api.measuring import BenchRequest
    from engine.services import EngineFacade

    if sum(x is not None for x in (model, shape, like, hub)) != 1:
        raise click.UsageError("Name a MODEL, or use --shape, --like or --hub.")
    request = BenchRequest(
        model=source_of(model),
        shape=shape,
        like=str(like.absolute()) if like else None,
        hub=hub,
        type=mix,
        lengths=lengths,
        parallel=parallel,
        repeats=repeats,
        tokens=tokens,
        threads=threads,
    )
    report = measure(lambda client: client.bench(request)).report
    assert report is not None
    services = EngineFacade()
    if picture is not None:
        picture.write_text(services.picture(report), encoding="utf-8")
    if as_json:
        print_json(report)
    elif as_csv:
        click.echo(services.as_csv(report), nl=False)
    else:
        _show(report, services.measured_before(report))


def _compare_places(model: str | None, *, as_json: bool) -> None:
    """Measure a model in every place that has no measurement yet, and print the speeds."""
    from engine.api.measuring import CompareRequest

    if model is None:
        raise click.UsageError("Name a MODEL of the library.")
    comparison = measure(lambda client: client.compare_places(CompareRequest(model=model))).comparison
    assert comparison is not None
    if as_json:
        print_json(comparison)
        return
    for place in comparison.places:
        where = f"{place.device} by {place.backend}"
        reads = f"reads {place.prefill_tok_s:.0f} tok/s (forecast {place.forecast_prefill_tok_s:.0f})"
        echo(f"{where}: {reads}, writes {place.decode_tok_s:.1f} ({place.forecast_decode_tok_s:.1f})")
    if not comparison.places:
        echo("Nothing to measure: there is one place for this model, or all were measured, tuned or pinned.")
    moved = f" instead of {comparison.before}" if comparison.after != comparison.before else ""
    echo(f"It runs on {comparison.after}{moved}.")


def _price_types(*, as_json: bool) -> None:
    """Measure and print the relative cost of each quantization type."""
    from quantize.ggml_types import TIME_UNIT

    prices = measure(lambda client: client.price_types()).prices
    assert prices is not None
    if as_json:
        print_json(prices)
        return
    unit = prices.ns_per_weight[TIME_UNIT.name]
    echo(f"decoding one weight, {prices.threads} threads (the planner uses these from now on):")
    for name, ns in sorted(prices.ns_per_weight.items(), key=lambda item: item[1]):
        echo(f"  {name:8} {ns * 1000:6.1f} ps, {ns / unit:.2f} of {TIME_UNIT.name}")


def _history(model: str | None, *, as_json: bool) -> None:
    """Print earlier results, oldest first."""
    import time

    from engine.services import EngineFacade

    measured = EngineFacade().measured(model)
    if as_json:
        print_json(measured)
        return
    if not measured:
        echo("There are no measurements yet." if model is None else f"There are no measurements of {model} yet.")
    for report in measured:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.started_at))
        speeds = ", ".join(
            f"{p.length}: {p.prefill_tok_s.median:.0f}/{p.decode_tok_s.median:.1f}" for p in report.points
        )
        kind = " (simulated)" if report.stand_in else ""
        echo(f"{when}  {report.model}{kind}, {report.backend}, {report.threads} threads: {speeds} tok/s")


def _show(report: "Report", before: "Report | None") -> None:
    from app.cli.console import console, escape, table
    from app.format import parameters, size

    out = console()
    bits = f", {8 * report.size_bytes / report.n_params:.2f} bits per weight" if report.n_params else ""
    threads = f"{report.threads} thread{'' if report.threads == 1 else 's'}"
    shape = f"{parameters(report.n_params)} parameters{bits}"
    out.print(f"{escape(report.model)}: {shape}, {size(report.size_bytes)}, {threads}")
    if report.stand_in:
        out.print("measured with random weights")
    metered = any(p.tokens_per_joule is not None for p in report.points)
    names = ("prompt", "prefill tok/s", "decode tok/s", "first token", "between tokens, 50/90/99 %")
    rows = []
    by_length = {p.length: p for p in before.points} if before else {}
    for p in report.points:
        was = by_length.get(p.length)
        change = f" ({p.decode_tok_s.median / was.decode_tok_s.median - 1:+.0%})" if was else ""
        cells = (
            str(p.length),
            f"{p.prefill_tok_s.median:.1f} ({p.prefill_tok_s.low:.1f}-{p.prefill_tok_s.high:.1f})",
            f"{p.decode_tok_s.median:.1f} ({p.decode_tok_s.low:.1f}-{p.decode_tok_s.high:.1f}){change}",
            f"{p.ttft_s.median * 1000:.0f} ms",
            "/".join(f"{gap * 1000:.1f}" for gap in p.itl_s) + " ms",
            *([f"{p.tokens_per_joule:.2f}" if p.tokens_per_joule is not None else "-"] if metered else []),
        )
        rows.append(cells)
    out.print(table((*names, *(["tokens a joule"] if metered else [])), rows, cut=names[-1]))
    for c in report.concurrency:
        out.print(f"{c.parallel} at once: {c.total_tok_s.median:.1f} tok/s together")
    power = [p.power_w for p in report.points if p.power_w is not None]
    watts = f", {sum(power) / len(power):.1f} W" if power else ""
    if power and report.idle_w is not None:
        watts += f" ({report.idle_w:.1f} at rest)"
    out.print(f"loaded in {report.load_s:.1f} s, {report.rss_bytes / 2**20:.0f} MiB resident{watts}")
    if report.drift < 0.9:  # noqa: PLR2004 - see Report.drift
        out.print(f"The machine got slower while measuring ({report.drift:.0%}): heat, or other programs.")
