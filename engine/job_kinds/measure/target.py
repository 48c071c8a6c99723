"""The target of a measurement: a local file, or a dummy-weight model of a shape, a file, or a file on the Hub."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from devices.atomic_file import scratch_folder
from engine.core.errors import InputFault
from engine.core.paths import Paths
from engine.job_kinds.bench import dummy_model
from engine.library.catalogue import Catalogue
from engine.library.hub import header_cache
from engine.library.types import ModelEntry
from engine.message_catalog.reasons import Reason, because
from engine.placement.load_settings import load_settings, usable_cores
from engine.placement.model_settings import named_model
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import GgufFile


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of `model` (an id or a GGUF file), `shape`, `like` (a file) and `hub` (owner/name:label).

    `mix` is the llama.cpp preset or type of a shape.
    """

    model: str | None = None
    shape: str | None = None
    like: str | None = None
    hub: str | None = None
    mix: str = "Q4_K_M"

    def check(self) -> None:
        """Check the fields. Raises: InputFault: none or several are given."""
        fields = [n for n in ("model", "shape", "like", "hub") if getattr(self, n) is not None]
        if len(fields) != 1:
            raise InputFault("Give exactly one of model, shape, like and hub.", fields[1] if fields else "model")

    @property
    def stand_in(self) -> bool:
        """Whether random weights are measured."""
        return self.model is None

    @property
    def name(self) -> str:
        if self.shape is not None:
            return f"{self.shape} {self.mix}"
        return self.model or self.hub or Path(self.like or "").name


class Opened(msgspec.Struct, frozen=True):
    """A target as a file that can be loaded, with the server's load settings."""

    path: Path
    settings: LoadSettings


@contextmanager
def opened(
    subject: Subject, paths: Paths, open_catalogue: Callable[[], Catalogue], step: Callable[[Reason], None]
) -> Iterator[Opened]:
    """The file; a dummy-weight model is written first and deleted at the end.

    Raises: InputFault, ModelNotFound, StandInFailed, errors of the Hub client.
    """
    subject.check()
    if subject.model is not None:
        yield _present(subject.model, open_catalogue)
        return
    # Dummy-weight models are as large as the real model, so they go to the cache's disk, not to a small /tmp.
    with scratch_folder(paths.cache / "stand-ins") as folder:
        path = folder / "stand-in.gguf"
        header = None
        if subject.hub is not None:
            step(because("bench_header"))
            header = _hub_header(subject.hub, paths, folder)
        dummy_model.write_in_child(
            path,
            like=_file(subject.like, open_catalogue) if subject.like is not None else None,
            header=header,
            shape=subject.shape or "",
            mix=subject.mix,
            on_progress=lambda done, total: step(because("bench_stand_in", share=done / max(total, 1))),
        )
        threads = usable_cores()
        yield Opened(path, LoadSettings(path=str(path), n_threads=threads, n_threads_batch=threads))


def _present(model: str, open_catalogue: Callable[[], Catalogue]) -> Opened:
    if Path(model).is_file():
        threads = usable_cores()
        return Opened(Path(model), LoadSettings(path=model, n_threads=threads, n_threads_batch=threads))
    entry = _entry(model, open_catalogue)
    return Opened(entry.path, load_settings(entry))


def _file(model: str, open_catalogue: Callable[[], Catalogue]) -> Path:
    return Path(model) if Path(model).is_file() else _entry(model, open_catalogue).path


def _entry(model: str, open_catalogue: Callable[[], Catalogue]) -> ModelEntry:
    catalogue = open_catalogue()
    try:
        entry = named_model(catalogue, model)
    finally:
        catalogue.close()
    if entry.format != "gguf" or entry.state != "online":
        raise InputFault(because("cannot_measure", model=model), "model")
    return entry


def _hub_header(name: str, paths: Paths, folder: Path) -> Path:
    """The header of a remote file, with all parts merged, stored for the child process."""
    from engine.placement.hub_shape import hub_parts

    parts = hub_parts(name, paths)
    header_cache.keep(folder, "remote", merged(parts))
    return folder / "remote.header"


def merged(parts: tuple[GgufFile, ...]) -> GgufFile:
    """The first part's header with the tensors of all parts."""
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    return replace(parts[0], tensors=tensors)
