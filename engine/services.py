"""What terminal and routes may ask without starting work: reads of the library, the hub and the machine.

Imports wait for the call: `tessera --help` and a server that starts import this file.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine.paths import BUNDLED_MODELS, DEFAULT_CONTEXT, Paths, user_paths
from engine.version import __version__

if TYPE_CHECKING:
    from engine.dispatch.placer import Placer
    from engine.library.catalogue import Catalogue
    from engine.library.foreign import ForeignFolder
    from engine.library.hub.names import HubName
    from engine.library.hub.own_build import OwnBuild  # noqa: TC004 - for annotations elsewhere
    from engine.library.hub.plan import Option, RepoPlan  # noqa: TC004 - for annotations elsewhere
    from engine.library.hub.repository import RepoHit  # noqa: TC004 - for annotations elsewhere
    from engine.library.starters import Proposal
    from engine.library.trash import Removed
    from engine.library.types import ModelEntry  # noqa: TC004 - for annotations elsewhere
    from engine.measurements.reports import Report

__all__ = [
    "BUNDLED_MODELS",
    "DEFAULT_CONTEXT",
    "ModelEntry",
    "Option",
    "OwnBuild",
    "Paths",
    "RepoHit",
    "RepoPlan",
    "Services",
    "__version__",
    "user_paths",
]


class Services:
    """Reads for one user. What is not given is opened when first needed; close what was opened here."""

    def __init__(
        self, paths: Paths | None = None, catalogue: "Catalogue | None" = None, placer: "Placer | None" = None
    ) -> None:
        self.paths = paths or user_paths()
        self._given = catalogue
        self._placer = placer

    @cached_property
    def catalogue(self) -> "Catalogue":
        """The library."""
        from engine.library.catalogue import Catalogue  # noqa: PLC0415 - see the top

        return self._given or Catalogue(self.paths)

    @cached_property
    def placer(self) -> "Placer":
        """Who says what fits here, and how fast it would run."""
        from engine.dispatch.placer import Placer  # noqa: PLC0415 - see the top
        from engine.dispatch.resources import open_resources  # noqa: PLC0415 - see the top

        return self._placer or Placer(open_resources(self.paths))

    def models(self) -> "tuple[ModelEntry, ...]":
        """Every model on this computer."""
        return self.catalogue.entries()

    def model(self, name: str) -> "ModelEntry":
        """One model. Raises: ModelNotFound."""
        from engine.library.lookup import require  # noqa: PLC0415 - see the top

        return require(self.catalogue, name)

    def trash(self) -> "tuple[Removed, ...]":
        """Removed models that can be brought back."""
        from engine.library.trash import Trash  # noqa: PLC0415 - see the top

        return Trash(self.catalogue).contents()

    def foreign_folders(self) -> "tuple[ForeignFolder, ...]":
        """Folders of other applications whose models could be linked."""
        from engine.library import foreign  # noqa: PLC0415 - see the top

        return foreign.present()

    def search(
        self, text: str, *, parameters: str | None = None, fits: bool = False, **filters: Any
    ) -> "tuple[RepoHit, ...]":
        """Repositories on the hub; `fits` leaves out what is too large here. Raises: the errors of HubClient."""
        from engine.library.hub.client import HubClient  # noqa: PLC0415 - see the top
        from engine.library.machine import largest_parameters  # noqa: PLC0415 - see the top

        if fits and parameters is None:
            parameters = f"max:{largest_parameters() / 1e9:.1f}B"
        return HubClient().search(text, parameters=parameters, **filters)

    def plan(self, repo: str, revision: str | None = None, *, refresh: bool = False) -> "RepoPlan":
        """What each quantization of a repository needs here; only headers are read. Raises: as `search`."""
        from engine.dispatch.verdict import judge_for  # noqa: PLC0415 - see the top
        from engine.library.hub.client import HubClient  # noqa: PLC0415 - see the top
        from engine.library.hub.plan import plan_repository  # noqa: PLC0415 - see the top

        judge = judge_for(self.placer)
        return plan_repository(HubClient(), self.paths, repo, revision=revision, judge=judge, refresh=refresh)

    def planned(self, model: str, label: str | None, revision: str | None) -> "tuple[RepoPlan, Option]":
        """The plan for what `tessera models pull` names, and what of it would be fetched.

        Raises: as `search`; InputFault: no name of a repository; NothingToDownload.
        """
        from engine.library.hub.choose import choose  # noqa: PLC0415 - see the top

        plan, name = self.planned_repository(model, label, revision)
        return plan, choose(plan, name)

    def planned_repository(self, model: str, label: str | None, revision: str | None) -> "tuple[RepoPlan, HubName]":
        """The plan of the repository that `model` names, and the name with everything said about it.

        Raises: as `search`; InputFault: no name of a repository.
        """
        from dataclasses import replace  # noqa: PLC0415 - see the top

        from engine.library.hub.names import parse_hub_name  # noqa: PLC0415 - see the top
        from engine.library.starters import starter_repo  # noqa: PLC0415 - see the top

        name = parse_hub_name(starter_repo(model) or model)
        name = replace(name, label=label or name.label, revision=revision or name.revision)
        return self.plan(name.repo, name.revision), name

    def starters(self) -> "tuple[Proposal, ...]":
        """Models to begin with that fit this machine."""
        from engine.library.machine import memory_bytes  # noqa: PLC0415 - see the top
        from engine.library.starters import propose  # noqa: PLC0415 - see the top

        return propose(memory_bytes())

    def measured(self, model: str | None = None) -> "list[Report]":
        """What was measured on this machine, oldest first."""
        from engine.measurements.results import Results  # noqa: PLC0415 - see the top

        return Results(self.paths.state / "bench.jsonl").all(model)

    def measured_before(self, report: "Report") -> "Report | None":
        """The newest earlier measurement of the same model and settings."""
        from engine.measurements.results import Results  # noqa: PLC0415 - see the top

        return Results(self.paths.state / "bench.jsonl").before(report)

    def as_csv(self, report: "Report") -> str:
        """A measurement in llama-bench's columns."""
        from engine.measurements.results import to_csv  # noqa: PLC0415 - see the top

        return to_csv(report)

    def picture(self, report: "Report") -> str:
        """A measurement drawn as SVG."""
        from engine.bench.picture import draw  # noqa: PLC0415 - see the top

        return draw([report])

    def shapes(self) -> tuple[str, ...]:
        """Shapes that can be measured without a file."""
        from engine.bench.shapes import SHAPES  # noqa: PLC0415 - see the top

        return tuple(SHAPES)

    def close(self) -> None:
        """Close the library where it was opened here."""
        if self._given is None and "catalogue" in vars(self):
            self.catalogue.close()
