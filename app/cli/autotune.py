"""`tessera autotune`."""

from typing import TYPE_CHECKING

import click

from app.cli.bench_job import Numbers, measure, source_of
from app.cli.echo import echo, print_json
from app.cli.settings_defaults import Number

if TYPE_CHECKING:
    from engine.api.jobs import TuneReport
    from engine.api.measuring import Goal


@click.command(
    help="Find the fastest settings for MODEL (an id or a GGUF file) on this machine, or those with the most "
    "tokens per joule. Later loads use them."
)
@click.argument("model", required=False)
@click.option(
    "--for",
    "goal",
    type=click.Choice(["speed", "energy"], case_sensitive=False),
    default="speed",
    show_default=True,
    help="Minimize the time of a request, or its energy above idle power (needs a power meter; no request "
    "becomes more than twice as slow).",
)
@click.option("--shape", help="Tune random weights of this shape instead, such as qwen3-8b.")
@click.option("--type", "mix", default="Q4_K_M", show_default=True, help="Preset or type of --shape.")
@click.option(
    "--lengths", type=Numbers(), default="512", show_default=True, help="Prompt lengths in tokens to tune for."
)
@click.option("--minutes", type=Number(0.1, 600), default=10.0, show_default=True, help="Time limit in minutes.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was measured as JSON.")
def command(
    model: str | None,
    goal: "Goal",
    shape: str | None,
    mix: str,
    lengths: tuple[int, ...],
    minutes: float,
    as_json: bool,
) -> None:
    """Search, store and explain."""
    from engine.api.measuring import TuneRequest

    if (model is None) == (shape is None):
        raise click.UsageError("Name a MODEL, or use --shape.")
    request = TuneRequest(
        model=source_of(model), shape=shape, type=mix, lengths=lengths, limit_s=60 * minutes, goal=goal
    )
    reports = measure(lambda client: client.autotune(request), on_interrupt="pause").reports
    if as_json:
        print_json(reports)
        return
    for report in reports:
        _show(report)


def _show(report: "TuneReport") -> None:
    before_s = report.default_turn_s
    failed = sum(t.outcome.failure is not None for t in report.trials)
    echo(
        f"{report.model}, {report.prompt_tokens} tokens: {report.turn_s:.2f} s per request "
        f"({report.prefill_tok_s:.0f} tok/s read, {report.decode_tok_s:.1f} tok/s written), "
        + ("the defaults do not work" if before_s is None else f"{before_s:.2f} s with the defaults")
    )
    if report.tokens_per_joule is not None:
        before, noise = report.default_tokens_per_joule, report.joules_noise or 0.0
        against = f", {before:.3g} with the defaults" if before is not None else ""
        echo(
            f"  {report.tokens_per_joule:.3g} tokens per joule{against} (joules of one run scatter by {noise:.1%})"
        )
    for choice in report.choices:
        echo(f"  {choice.words()}")
    echo(f"  {len(report.trials)} trials in {report.cost_s:.0f} s, {failed} of them bad")
    if not report.complete:
        echo("  The time limit ended the search: run it again to continue.")
