"""`tessera fim-bench`: measures the time of a completion after a keystroke."""

from pathlib import Path

import click

from app.cli.echo import echo, print_json


@click.command(
    "fim-bench",
    help="Measure MODEL's latency from keystroke to suggestion (default: a model for fill-in-the-middle).",
)
@click.argument("model", required=False)
@click.option(
    "--file", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File whose text is typed."
)
@click.option("--keystrokes", type=click.IntRange(10, 10_000), default=120, show_default=True)
@click.option(
    "--window",
    type=click.IntRange(500, 200_000),
    default=2400,
    show_default=True,
    help="Characters around the cursor that are sent.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def command(model: str | None, file: Path | None, keystrokes: int, window: int, as_json: bool) -> None:
    """Type a file and time the answers."""
    from app.cli.connection import connected
    from app.code import fim_bench

    source = file or Path(fim_bench.__file__)
    text = source.read_text("utf-8", "replace")
    if len(text) < 2 * keystrokes:
        raise click.UsageError(f"{source} has {len(text)} characters; {2 * keystrokes} are needed.")
    with connected() as client:
        result = fim_bench.run(client, text, source.name, model=model, count=keystrokes, window_chars=window)
    if as_json:
        print_json(result)
        return
    echo(f"{result.keystrokes} keystrokes, {result.mean_prompt_tokens:.0f} prompt tokens on average")
    echo(
        f"keystroke to first token: p50 {result.p50_ms:.1f} ms, p90 {result.p90_ms:.1f} ms, "
        f"p95 {result.p95_ms:.1f} ms, p99 {result.p99_ms:.1f} ms (cold {result.cold_ms:.0f} ms)"
    )
    echo(f"prompt taken from the cache: {result.reuse_frac:.1%}; answered: {result.answered}")
