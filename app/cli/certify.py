"""`tessera certify`: how well a model calls tools."""

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from app.code.certify.run import CaseResult, Certificate


@click.command(help="Run about 30 tool calls on each MODEL and show the pass rate; several models are compared.")
@click.argument("models", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the certificates as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Only the totals.")
def command(models: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Run the suite and keep the certificates."""
    import msgspec  # noqa: PLC0415 - the command's own imports wait until it runs

    from app.cli.connection import connected  # noqa: PLC0415
    from app.client import ApiError, ServerUnreachable  # noqa: PLC0415
    from app.code.certify.run import CertificateStore, certify  # noqa: PLC0415
    from app.code.connect.endpoint import endpoint_of  # noqa: PLC0415
    from engine.paths import user_paths  # noqa: PLC0415

    def show(result: "CaseResult") -> None:
        if not quiet and not as_json:
            mark = click.style("pass", fg="green") if result.passed else click.style("fail", fg="red")
            click.echo(f"{mark}  {result.category:13} {result.name:22} {result.reason or ''}"[:200].rstrip())

    store = CertificateStore(user_paths().state)
    made = []
    try:
        with connected() as client:
            for model in models:
                endpoint = endpoint_of(client, model)
                made.append(certify(client, endpoint.model, endpoint.context, on_result=show))
                store.save(made[-1])
    except (ApiError, ServerUnreachable) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps([json.loads(msgspec.json.encode(certificate)) for certificate in made]))
        return
    _table(made)


def _table(made: "list[Certificate]") -> None:
    categories = list(made[0].by_category())
    width = max(len(certificate.model) for certificate in made)
    click.echo(f"{'':{width}}  {'all':>7}  " + "  ".join(f"{name:>12}" for name in categories))
    for certificate in made:
        found = certificate.by_category()
        cells = "  ".join(f"{found[name][0]:>9}/{found[name][1]:<2}" for name in categories)
        click.echo(f"{certificate.model:{width}}  {certificate.pass_frac:>6.0%}   {cells}")
