"""`tessera onnx`: converts a model for ONNX Runtime and lists the execution providers of this computer."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.echo import echo, failed, print_json
from app.cli.settings_defaults import Number
from app.format import size

if TYPE_CHECKING:
    from quantize.onnx.quark import Form


@click.group("onnx")
def command() -> None:
    """Convert models for ONNX Runtime, and show which devices it can use."""


@command.command("convert")
@click.argument("source")
@click.argument("out", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--all-logits", is_flag=True, help="Logits of every position, to verify drafts; prompts cost more.")
@click.option("--exact", is_flag=True, help="Activations in 32 bits instead of 8: slower, but more exact.")
@click.option("--fixed", is_flag=True, help="Quantized graphs with fixed shapes, for Qualcomm's NPU compiler.")
@click.option("--context", type=click.IntRange(64, 8192), default=512, help="With --fixed: context in tokens.")
@click.option(
    "--bits",
    type=click.Choice(["8", "4"], case_sensitive=False),
    default="8",
    help="With --fixed: bits per weight.",
)
@click.option(
    "--seconds", type=Number(2, 30), default=12, help="With --fixed and speech: longest audio in seconds."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def convert_command(
    source: str,
    out: Path | None,
    all_logits: bool,
    exact: bool,
    fixed: bool,
    context: int,
    bits: str,
    seconds: float,
    as_json: bool,
) -> None:
    """Convert SOURCE (a GGUF file or a model of the library) to a folder that ONNX Runtime runs.

    Supports Llama, Qwen2 and Qwen3. Q4_0, Q6_K, Q8_0 and 16-bit weights stay exact; others become 8 bits, with a
    notice. Without OUT, the folder is added to the library, unless the file was converted before. With --fixed,
    SOURCE `speech` converts the installed speech model.
    """
    from app.cli.bench_job import source_of
    from app.cli.job_line import finish, this_computers_server
    from app.cli.progress import bar
    from engine.api.converting import ConvertedFolder, FixedShapes, OnnxConvertRequest

    shapes = FixedShapes(context=context, bits=8 if bits == "8" else 4, seconds=seconds) if fixed else None
    request = OnnxConvertRequest(
        source=source_of(source) or source,
        out=str(out.absolute()) if out else None,
        exact=exact,
        all_logits=all_logits,
        fixed=shapes,
    )
    with this_computers_server() as client, bar() as show:
        done = finish(client, client.convert_onnx(request), ConvertedFolder, show)
    if as_json:
        print_json(done)
        return
    for notice in done.notices:
        echo(notice, err=True)
    echo(f"{done.model} {'was converted before' if done.cached else 'is ready'}: {done.folder}")


@command.command("quark")
@click.argument("source", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--context", type=click.IntRange(16, 8192), default=128, help="Tokens of a text.")
@click.option(
    "--form", type=click.Choice(["a8w8", "a16w8", "bf16", "xint8", "float"], case_sensitive=False), default="float"
)
def quark_command(source: Path, out: Path, context: int, form: "Form") -> None:
    """Write an embedding model for AMD's NPUs (experimental, untried): SOURCE, a GGUF file, to the folder OUT.

    AMD's Ryzen AI Software compiles the result and, with `float`, also quantizes it. The other forms are quantized
    by AMD's Quark in a separate environment (TESSERA_QUARK_PYTHON). a8w8 makes small models unusable.
    """
    from devices.errors import TesseraError
    from quantize.onnx.quark import export

    try:
        done = export(source, out.absolute(), tokens=context, form=form)
    except TesseraError as error:
        raise failed(error) from error
    for notice in done.notices:
        echo(notice, err=True)
    echo(f"{done.folder}: {size(done.graph_bytes)}")


@command.command("providers")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def providers_command(as_json: bool) -> None:
    """Show every execution provider, whether it works here, and what is missing if not."""
    from engine.services import EngineFacade

    reports = EngineFacade().onnx_providers()
    if as_json:
        click.echo(json.dumps({"providers": [report.as_json() for report in reports]}))
        return
    for report in reports:
        echo(f"{report.title:<22}{report.state:<14}{report.detail}")
