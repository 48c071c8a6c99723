"""`tessera certify`: measures how well a model calls tools."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.echo import echo, echo_result, failed

if TYPE_CHECKING:
    from app.evals.tool_calls.run import CaseResult, Certificate


_MOST_CHARS = 200  # of a line


@click.command(help="Run about 30 tool calls on each MODEL and show the pass rate; several models are compared.")
@click.argument("models", nargs=-1, required=True)
@click.option(
    "--suite",
    "suite_name",
    type=click.Choice(["own", "bfcl"], case_sensitive=False),
    default="own",
    help="bfcl: a fixed sample of Berkeley's function-calling set, checked with that set's answers.",
)
@click.option("--cases", type=click.IntRange(1, 200), help="Cases of each of bfcl's four kinds.  [default: 25]")
@click.option(
    "--data", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The wheel with bfcl's cases."
)
@click.option("--json", "as_json", is_flag=True, help="Print the certificates as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the totals.")
def command(
    models: tuple[str, ...], suite_name: str, cases: int | None, data: Path | None, as_json: bool, quiet: bool
) -> None:
    """Run the suite and store the certificates."""
    import msgspec

    from app.cli.connection import connected
    from app.client import ApiError, ServerUnreachable
    from app.code.integrations.endpoint import endpoint_of
    from app.evals import bfcl
    from app.evals.datasets import BFCL, NoDataset, wheel
    from app.evals.tool_calls.run import OWN, CertificateStore, certify, template_has_tools
    from engine.services import user_paths

    def show(result: "CaseResult") -> None:
        if not quiet and not as_json:
            text = f"{result.category:13} {result.name:22} {result.reason or ''}"
            echo_result(text[:_MOST_CHARS], passed=result.passed)

    store = CertificateStore(user_paths().state)
    certificates = []
    if suite_name == OWN and (cases or data):
        raise click.UsageError("--cases and --data belong to --suite bfcl.")
    try:
        chosen = None if suite_name == OWN else bfcl.cases(wheel(BFCL, data), cases or bfcl.PER_CATEGORY)
        with connected() as client:
            for model in models:
                endpoint = endpoint_of(client, model)
                native = template_has_tools(client, endpoint.model)
                certificate = certify(
                    client,
                    endpoint.model,
                    endpoint.context,
                    cases=chosen,
                    suite_name=suite_name,
                    native_tools=native,
                    on_result=show,
                )
                certificates.append(certificate)
                store.save(certificate)
    except (ApiError, ServerUnreachable, NoDataset) as error:
        raise failed(error) from error
    if as_json:
        click.echo(json.dumps([json.loads(msgspec.json.encode(certificate)) for certificate in certificates]))
        return
    _table(certificates)


def _table(certificates: "list[Certificate]") -> None:
    from quantize.intervals import share_text

    categories = list(certificates[0].by_category())
    width = max(len(certificate.model) for certificate in certificates)
    echo(f"{'':{width}}  {'all':>7}  " + "  ".join(f"{name:>12}" for name in categories))
    for certificate in certificates:
        scores = certificate.by_category()
        cells = "  ".join(f"{scores[name][0]:>9}/{scores[name][1]:<2}" for name in categories)
        echo(f"{certificate.model:{width}}  {certificate.pass_frac:>6.0%}   {cells}")
    for certificate in certificates:
        shown = share_text(certificate.num_passed, len(certificate.results))
        echo(f"{certificate.model}: {shown}, 95 % interval")
        if not certificate.native_tools:
            echo(
                f"{certificate.model}: its chat template has no place for tools; they were described in the system "
                "message, in a generic form it was not trained on."
            )
