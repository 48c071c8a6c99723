"""What `tessera quantize` has to look up: models of the library, and the memory of this machine."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.quantize_fit import FitGoal


def library_path(name: str) -> Path:
    """The file or folder of a model of the library. Raises: ModelNotFound."""
    from engine.library.catalogue import Catalogue  # noqa: PLC0415 - opens the database
    from engine.library.lookup import require  # noqa: PLC0415

    catalogue = Catalogue()
    try:
        return require(catalogue, name).path
    finally:
        catalogue.close()


def machine_fit(source: Path, memory_bytes: int | None, n_ctx: int, n_seq: int) -> "FitGoal":
    """What weights and cache may take here at that context, for that many sequences.

    Raises: the errors of reading or, for a folder, converting the source.
    """
    from devices.detect import inventory  # noqa: PLC0415 - only --fit needs the machine
    from devices.host_real import RealHost  # noqa: PLC0415
    from devices.memory import Ledger  # noqa: PLC0415
    from engine.fit.report import machine_isa  # noqa: PLC0415
    from engine.fit.shape import model_shape  # noqa: PLC0415
    from engine.paths import user_paths  # noqa: PLC0415
    from engine.quantize_fit import fit_goal, promised, source_dry_run  # noqa: PLC0415
    from quantize.child import run_task  # noqa: PLC0415
    from quantize.convert.folder import ConvertRequest  # noqa: PLC0415
    from quantize.gguf_split import read_gguf_model  # noqa: PLC0415

    machine = inventory(RealHost())
    memory = memory_bytes or Ledger(lambda: machine).available("cpu", machine)
    with TemporaryDirectory(prefix="header-") as scratch:
        path = source
        if source.is_dir():
            path = Path(scratch) / "header.gguf"
            task = ConvertRequest(folder=source, out=path, header_only=True)
            run_task("prepare", task, lambda _progress: None, lambda: False)
        settings = promised(path, n_ctx, n_seq)
        dry = source_dry_run(settings, user_paths().cache / "dry_runs.json")
        return fit_goal(model_shape(read_gguf_model(path)), memory, settings, machine_isa(machine), dry=dry)
