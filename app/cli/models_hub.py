"""`tessera models search`, `starters`, `compare` and `pull`."""

import json
import sys
from typing import TYPE_CHECKING

import click

from app.cli.echo import echo, print_json
from app.cli.progress import ProgressBar
from app.cli.settings_defaults import obey_offline

if TYPE_CHECKING:
    from app.client import Client
    from engine.api.hub import UploadComparison
    from engine.api.jobs import Job, Progress
    from engine.api.library import PullRequest
    from engine.services import Option, OwnBuild, RepoHit, RepoPlan


@click.command("search")
@click.argument("text", required=False, default="")
@click.option("--task", help="For example text-generation, feature-extraction, image-text-to-text.")
@click.option("--arch", "architecture", help="For example qwen3, llama, gemma3.")
@click.option("--params", "parameters", help="Range of parameters: min:3B,max:9B.")
@click.option("--fits", is_flag=True, help="Only what fits this machine at about 4 bits per weight.")
@click.option("--all-formats", is_flag=True, help="Not only repositories with GGUF files.")
@click.option(
    "--sort",
    type=click.Choice(["trending", "downloads", "likes", "lastModified"], case_sensitive=False),
    default="trending",
)
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def search_command(
    text: str,
    task: str | None,
    architecture: str | None,
    parameters: str | None,
    fits: bool,
    all_formats: bool,
    sort: str,
    limit: int,
    as_json: bool,
) -> None:
    """Search the hub for TEXT."""
    import msgspec

    from engine.services import EngineFacade

    obey_offline()
    hits = EngineFacade().search(
        text,
        task=task,
        architecture=architecture,
        parameters=parameters,
        fits=fits,
        gguf_only=not all_formats,
        sort=sort,
        limit=limit,
    )
    if as_json:
        click.echo(json.dumps({"repositories": msgspec.to_builtins(hits)}))
        return
    _print_hits(hits)


@click.command("starters")
@click.option("--check", is_flag=True, help="Ask the hub which of them it has, and how large they are.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def starters_command(check: bool, as_json: bool) -> None:
    """Propose three models that fit this machine."""
    from app.format import size
    from engine.api.sentences import with_sentences
    from engine.services import EngineFacade

    if check:
        obey_offline()
    proposals = EngineFacade().starters(check=check)
    if as_json:
        click.echo(json.dumps({"proposals": with_sentences(proposals)}))
        return
    for proposal in proposals:
        starter = proposal.starter
        amount = size(proposal.download_bytes) if check else f"about {size(starter.expected_bytes)}"
        echo(f"{starter.id:<22}{starter.job:<11}{amount}, {starter.license}")
        echo(f"  {proposal.reason}.")
    unchecked = f"The list is from {EngineFacade.recommended_on()}; --check asks the hub."
    echo("\nChecked with the hub." if check else f"\n{unchecked}")
    echo("Get one: tessera models pull " + (proposals[0].starter.id if proposals else "qwen3-0.6b"))


@click.command("compare")
@click.argument("uploads", nargs=-1, required=True, metavar="UPLOAD...")
@click.option("--original", default="", help="What to compare with: owner/name or owner/name:BF16.")
@click.option(
    "--more", type=click.IntRange(0, 20), default=0, help="Number of other uploads of the same model to add."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare_command(uploads: tuple[str, ...], original: str, more: int, as_json: bool) -> None:
    """Estimate the loss of quantized files on the hub, before you download one.

    UPLOAD is owner/name for all its quantizations, owner/name:Q4_K_M, or owner/name/file.gguf. About 1.5 % of each
    file and of the original are read. All uploads must be of the same model.
    """
    import msgspec

    from app.cli.job_line import finish, this_computers_server
    from engine.api.hub import CompareUploadsRequest, UploadComparison

    obey_offline()
    show = ProgressBar()
    try:
        with this_computers_server() as client:
            request = CompareUploadsRequest(uploads=uploads, original=original, more=more)
            comparison = finish(client, client.compare_uploads(request), UploadComparison, show)
    finally:
        show.close()
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(comparison)))
        return
    _print_comparison(comparison)


def _print_comparison(comparison: "UploadComparison") -> None:
    from app.cli.console import console, table
    from app.format import size

    rows = []
    for loss in comparison.uploads:
        middle = f"{loss.kld:.4f}" if loss.kld is not None else ""
        ends = f"{loss.low:.4f} to {loss.high:.4f}" if loss.kld is not None else ""
        rows.append((loss.name, size(loss.size_bytes), f"{loss.bits_per_weight:.2f}", middle, ends, loss.problem))
    out = console()
    out.print(table(("upload", "size", "bits per weight", "expected loss", "between", ""), rows, cut=""))
    if all(loss.kld is None for loss in comparison.uploads):
        return
    echo(f"Expected loss in nats per token (KL divergence), compared with {comparison.original}.")
    if not comparison.tested_by:
        echo("How sensitive this model is to rounding is not known; this changes all values by the same factor.")
        echo(
            "Their order is more certain. If the original is in the library, a quick test of it narrows the range:"
        )
        echo("  tessera quantize NAME --quick-test --plan-only --bpw 4.5")
    else:
        echo(f"The quick test of {comparison.tested_by} measured how sensitive this model is.")
    out.print(f"Read {size(comparison.fetched_bytes)} of {size(comparison.total_bytes)}.", style="dim")


@click.command("pull")
@click.argument("model")
@click.option("--quant", "label", help="Which quantization; default: the best one for this machine.")
@click.option("--plan", "plan_only", is_flag=True, help="Show what is available and what fits; download nothing.")
@click.option("--revision", help="Branch, tag or commit.")
@click.option("--no-vision", is_flag=True, help="Skip the vision projector.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: progress, then the model.")
def pull_command(
    model: str, label: str | None, plan_only: bool, revision: str | None, no_vision: bool, yes: bool, as_json: bool
) -> None:
    """Download MODEL: owner/name, owner/name:Q4_K_M, owner/name/file.gguf, or its address."""
    from contextlib import closing

    from app.cli.job_line import Interrupted, finish, this_computers_server
    from engine.api.jobs import ModelMade
    from engine.api.library import PullRequest
    from engine.services import EngineFacade

    obey_offline()
    with closing(EngineFacade()) as services:
        if plan_only:
            _print_plan(services.planned_repository(model, label, revision)[0], as_json=as_json)
            return
        if not as_json:
            plan, option = services.planned(model, label, revision)
            _print_option(plan, option)
            if not yes and sys.stdin.isatty():
                click.confirm("Fetch it?", default=True, abort=True, err=True)
    request = PullRequest(model=model, quant=label, revision=revision, vision=not no_vision)
    show = _json_line if as_json else ProgressBar()
    try:
        with this_computers_server() as client:
            pulled = finish(client, _resume_or_start(client, request), ModelMade, show, on_interrupt="pause")
    except Interrupted as stopped:
        if stopped.state == "paused":
            raise Interrupted(stopped.state, "Paused. Run the same command to continue.") from None
        raise
    finally:
        if isinstance(show, ProgressBar):
            show.close()
    if as_json:
        click.echo(json.dumps({"model": pulled.model, "path": pulled.path, "size_bytes": pulled.size_bytes}))
    else:
        echo(f"{pulled.model} is ready. Try: tessera chat {pulled.model}")


def _resume_or_start(client: "Client", request: "PullRequest") -> "Job":
    """Resume the paused download with the same parameters, or start a new one."""
    import msgspec

    from engine.api.jobs import JobKind

    params = msgspec.to_builtins(request)
    for job in client.jobs():
        if job.kind is JobKind.PULL and job.state == "paused" and job.params == params:
            return client.job_action(job.id, "resume")
    return client.pull(request)


def _json_line(progress: "Progress") -> None:
    if progress.total:  # the total is known
        print_json({"progress": progress})


def _print_hits(hits: tuple["RepoHit", ...]) -> None:
    from app.cli.console import console, table
    from app.format import parameters

    rows = []
    for hit in hits:
        context = f"{hit.context_train:,}" if hit.context_train else "?"
        updated = (hit.updated or "?")[:10]
        cells = (parameters(hit.n_params or 0), hit.architecture or "?", context, f"{hit.downloads:,}", updated)
        rows.append((hit.repo, *cells, "gated" if hit.gated else ""))
    heads = ("repository", "params", "architecture", "context", "downloads", "updated", "")
    console().print(table(heads, rows, cut="architecture") if hits else "Nothing found.")


def _print_plan(plan: "RepoPlan", *, as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    from app.cli.console import console, escape, table
    from app.format import size

    rows: list[tuple[str, ...]] = []
    best = -1
    for option in plan.options:
        verdict = option.verdict
        bits = f"{option.bits_per_weight:.2f}" if option.bits_per_weight else ""
        needs = size(verdict.needed_bytes) if verdict else ""
        fits = ("yes" if verdict.fits else "no") if verdict else ""
        speed = f"{verdict.decode_tok_s:.0f}" if verdict and verdict.fits and verdict.decode_tok_s else ""
        note = option.problem or ("best for this machine" if option.best else "")
        best = len(rows) if option.best else best
        rows.append((option.choice.label, size(option.choice.size_bytes), bits, needs, fits, speed, note))
    out = console()
    out.print(table(("type", "size", "bits per weight", "needs", "fits", "tok/s", ""), rows, cut="", bold=best))
    if plan.own:
        for line in _own_build_lines(plan.repository.repo, plan.own):
            out.print(escape(line))
    out.print(f"Read {size(plan.fetched_bytes)} of headers in {plan.elapsed_s:.1f} s.", style="dim")


def _own_build_lines(repo: str, own: "OwnBuild") -> list[str]:
    """Text that compares a quantization built by Tessera with the ready-made file, and the command for it."""
    from app.format import size

    rival = f" (expected of {own.instead_of}: {own.ready_kld:.4f})" if own.ready_kld is not None else ""
    instead = f" instead of {own.instead_of}" if own.instead_of else ""
    bits = f"{own.bits_per_weight:.2f} bits per weight"
    what = f"{size(own.file_bytes)}, {bits}, expected loss {own.kld:.4f} nats per token"
    return [
        "",
        f"Tessera would build its own{instead} from {own.source}: {what}{rival}; {own.based_on}.",
        f"  tessera models pull {repo}:{own.source}",
        f"  tessera quantize NAME --budget {own.file_bytes}B",
    ]


def _print_option(plan: "RepoPlan", option: "Option") -> None:
    from app.format import size

    verdict = option.verdict
    fit = ""
    if verdict is not None:
        fit = f"; needs {size(verdict.needed_bytes)} of {size(verdict.available_bytes)}"
        fit += "" if verdict.fits else ", which does not fit this machine"
    what = f"{plan.repository.repo} {option.choice.label}: {size(option.choice.size_bytes)}{fit}"
    echo(f"{what}. License: {plan.repository.license or 'not given'}.", err=True)
