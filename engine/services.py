"""Services of CLI and HTTP routes that need no job: the library, the hub, the machine, and settings files.

Checks of devices and engine versions load models in separate child processes. Imports happen inside the methods,
because `tessera --help` and a starting server import this file.
"""

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine.core.addresses import is_plain_text
from engine.core.defaults import DEFAULT_CONTEXT
from engine.core.paths import BUNDLED_MODELS, Paths, user_paths
from engine.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from devices.fault_rules import Rules
    from devices.host import Host
    from devices.llama_cpp_versions.store import VersionStore
    from engine.api.hub import Proposal
    from engine.api.machine import FitReport, Placement
    from engine.core.keys import KeyStore
    from engine.core.program_keys import ProgramKeys
    from engine.core.sampling import Chosen
    from engine.job_kinds.quantize.calibration_text import OwnText
    from engine.job_kinds.quantize.options import QuantizeOptions
    from engine.job_kinds.quantize.tasks import TaskSets
    from engine.library.catalogue import Catalogue
    from engine.library.hub.file_selection import HubName
    from engine.library.hub.types import Option, OwnBuild, RepoHit, RepoPlan
    from engine.library.other_apps import ForeignFolder
    from engine.library.trash import Removed
    from engine.library.types import ModelEntry
    from engine.onnx.discovery import ProviderReport
    from engine.placement.device_verification import ComparedDevice
    from engine.placement.engine_versions import Compared
    from engine.placement.external import ProgramStore
    from engine.placement.measurements import Report
    from engine.placement.model_settings import ModelSettingsStore
    from engine.placement.placer import Placer
    from engine.placement.types import WrongAnswers
    from quantize.job.request import QuantizeReport


class EngineFacade:
    """Read access for one user. Missing parts are opened when first needed; `close` closes only those."""

    def __init__(
        self, paths: Paths | None = None, catalogue: "Catalogue | None" = None, placer: "Placer | None" = None
    ) -> None:
        self.paths = paths or user_paths()
        self._opened = catalogue
        self._placer = placer

    @cached_property
    def catalogue(self) -> "Catalogue":
        from engine.library.catalogue import Catalogue

        return self._opened or Catalogue(self.paths)

    @cached_property
    def placer(self) -> "Placer":
        """Decides what fits here, and how fast it would run."""
        from engine.placement.placer import Placer
        from engine.placement.resources import open_resources

        return self._placer or Placer(open_resources(self.paths))

    def models(self) -> "tuple[ModelEntry, ...]":
        """Every model on this computer, including those that only other programs here can serve."""
        from engine.upstreams.registry import external_entries

        entries = self.catalogue.entries()
        return (*entries, *external_entries(entries))

    def model(self, name: str) -> "ModelEntry":
        """The model with this name or alias. Raises: ModelNotFound."""
        from engine.placement.model_settings import named_model

        return named_model(self.catalogue, name)

    def trash(self) -> "tuple[Removed, ...]":
        """Removed models that can be restored."""
        from engine.library.trash import Trash

        return Trash(self.catalogue).contents()

    def foreign_folders(self) -> "tuple[ForeignFolder, ...]":
        """Folders of other applications whose models could be linked."""
        from engine.library import other_apps

        return other_apps.present()

    def search(
        self, text: str, *, parameters: str | None = None, fits: bool = False, **filters: Any
    ) -> "tuple[RepoHit, ...]":
        """Repositories on the hub; `fits` omits models that are too large here. Raises: the errors of HubClient."""
        from engine.library.default_model import largest_parameters
        from engine.library.hub.client import HubClient

        if fits and parameters is None:
            parameters = f"max:{largest_parameters(self.placer.machine_now()) / 1e9:.1f}B"
        return HubClient().search(text, parameters=parameters, **filters)

    def plan(self, repo: str, revision: str | None = None, *, refresh: bool = False) -> "RepoPlan":
        """Memory need of each quantization of a repository here; reads only headers. Raises: as `search`."""
        from msgspec.structs import replace

        from engine.library.hub.client import HubClient
        from engine.library.hub.plan import about, plan_repository
        from engine.message_catalog import sentence
        from engine.placement.hub_shape import fit_estimator

        estimate = fit_estimator(self.placer, sentence)
        client = HubClient()
        repo_plan = plan_repository(client, self.paths, repo, revision=revision, estimate=estimate, refresh=refresh)
        return replace(repo_plan, about=about(client, self.paths, repo_plan.repository))

    def planned(self, model: str, label: str | None, revision: str | None) -> "tuple[RepoPlan, Option]":
        """The plan for the argument of `tessera models pull`, and the option that would be downloaded.

        Raises: as `search`; InputFault: not a repository name; NothingToDownload.
        """
        from engine.library.hub.file_selection import choose

        plan, name = self.planned_repository(model, label, revision)
        return plan, choose(plan, name)

    def planned_repository(self, model: str, label: str | None, revision: str | None) -> "tuple[RepoPlan, HubName]":
        """The plan of the repository that `model` names, and its name with all given parts.

        Raises: as `search`; InputFault: not a repository name.
        """
        from msgspec.structs import replace

        from engine.library.hub.file_selection import parse_hub_name
        from engine.library.recommended_models import starter_repo

        name = parse_hub_name(starter_repo(model) or model)
        name = replace(name, label=label or name.label, revision=revision or name.revision)
        return self.plan(name.repo, name.revision), name

    def starters(self, *, check: bool = False) -> "tuple[Proposal, ...]":
        """Recommended first models that fit this machine, sized by its expected speed.

        `check`: only those that the hub has now, with the size of the usual file. Raises: as `search`.
        """
        from msgspec.structs import replace

        from engine.library.default_model import memory_bytes
        from engine.library.recommended_models import propose

        sizes: dict[str, int] = {}
        while True:
            unavailable = frozenset(name for name, size in sizes.items() if not size)
            budget = memory_bytes(self.placer.machine_now())
            proposals = propose(budget, self.placer.expected_tok_s, unavailable)
            new = [each.starter for each in proposals if check and each.starter.id not in sizes]
            if not new:
                break
            sizes.update((starter.id, self._hub_bytes(starter.repo)) for starter in new)
        return tuple(replace(each, download_bytes=sizes.get(each.starter.id, 0)) for each in proposals)

    @staticmethod
    def recommended_on() -> str:
        """The date of the table of recommended models: year, month, day."""
        from engine.library.recommended_models import listed_on

        return listed_on()

    def _hub_bytes(self, repo: str) -> int:
        """Size of the usual file of a repository; 0 if the hub has no such repository, or no GGUF file in it."""
        from engine.library.errors import GatedRepository, RepositoryNotFound
        from engine.library.hub.client import HubClient
        from engine.library.hub.plan import listed
        from engine.library.hub.repository import choices_of
        from quantize.plan.llama_cpp_preset_rules import USUAL_LABELS

        try:
            choices = choices_of(listed(HubClient(), self.paths, repo))
        except (RepositoryNotFound, GatedRepository):
            return 0
        sizes = {choice.label: choice.size_bytes for choice in choices if choice.format == "gguf"}
        return next((sizes[label] for label in USUAL_LABELS if label in sizes), next(iter(sizes.values()), 0))

    def quantize_target(self, options: "QuantizeOptions") -> "Path":
        """Default output path of `tessera quantize` with these options. Raises: ModelNotFound."""
        from engine.job_kinds.quantize.job import source_of
        from engine.job_kinds.quantize.request import default_out

        return default_out(source_of(self.catalogue, options.model).path, options, self.paths)

    def quantize_plan(self, options: "QuantizeOptions", task_sets: "TaskSets") -> "QuantizeReport":
        """The likely plan and the memory and time of the job; `task_sets` tasks may be its quality gate.

        Raises: InputFault, EnvironmentFault.
        """
        from engine.job_kinds.quantize.job import predict

        return predict(self.catalogue, options, self.placer.resources, task_sets)

    def own_text(self, sources: "Iterable[Path]", scratch: "Path", chats: "Iterable[str]") -> "OwnText":
        """The user's text as calibration and evaluation files, written to `scratch`. Raises: InputFault."""
        from engine.job_kinds.quantize.calibration_text import gather

        return gather(sources, scratch, chats)

    def onnx_providers(self) -> "tuple[ProviderReport, ...]":
        """Every execution provider of ONNX Runtime, and whether it works here."""
        from engine.onnx.discovery import discover

        return discover()

    def why_no_default_model(self) -> str | None:
        """Why the installation has no default chat model; None if it has one."""
        from engine.library.default_model import missing_model_reason

        return missing_model_reason()

    @cached_property
    def keys(self) -> "KeyStore":
        """Keys of other clients; a running server sees changes made here."""
        from engine.core.keys import KeyStore

        return KeyStore(self.paths.config / "api-keys.json")

    @cached_property
    def program_keys(self) -> "ProgramKeys":
        """Keys of the programs connected from here; a running server sees changes made here."""
        from engine.core.program_keys import ProgramKeys

        return ProgramKeys(self.paths.config / "program-keys.json")

    @cached_property
    def model_settings(self) -> "ModelSettingsStore":
        """The user's settings for models; a running server sees changes made here."""
        from engine.placement.model_settings import open_model_settings

        return open_model_settings(self.paths)

    def sampling(self, model: "ModelEntry") -> "tuple[Chosen, Chosen]":
        """Default sampling of a model; the second value is without reasoning."""
        from engine.core.sampling import choose
        from engine.placement.load_settings import recommended_for

        recommended = recommended_for(model, self.model_settings.get(model.id))
        return choose({}, recommended.layers(None)), choose({}, recommended.plain)

    def fit(
        self,
        model: str,
        machine: "Host | None" = None,
        projector: str | None = None,
        mix: str | None = None,
        **overrides: Any,
    ) -> "tuple[FitReport, Placement]":
        """Memory need and placement of a model, a file or a repository, on this machine or a recorded one.

        With `mix`, a preset or type, `model` is one of `shapes`. `overrides` as in engine.placement.types.
        Raises: ModelNotFound, the errors of HubClient and of reading the file; InputFault: no such shape or preset,
        or `projector` is not one.
        """
        import msgspec

        from engine.placement.hub_shape import find, of_header, with_projector
        from engine.placement.load_settings import open_context
        from engine.placement.pins import check_pin
        from engine.placement.placer import Placer
        from engine.placement.resources import MachineState, open_resources
        from engine.placement.types import PlacementLimits

        placer = Placer(open_resources(self.paths, MachineState(machine) if machine else None))
        if overrides.get("device"):
            check_pin(placer.resources.machine.full(), overrides["device"])
        if mix is None:
            fitted = find(model, self.catalogue, placer)
        else:
            from engine.job_kinds.bench.dummy_model import header_of_shape

            name = f"{model} {mix}".lower()
            fitted, model = of_header(name, header_of_shape(model, mix)), name
        shape, settings = fitted.shape, fitted.settings
        if projector is not None:
            settings = with_projector(settings, projector)
        exact = os.path.isfile(settings.path) and machine is None  # noqa: PTH113 - pathlib is not imported here
        limits = {"max_ctx": open_context(is_chosen=overrides.get("n_ctx") is not None), **overrides}
        placement = placer.judge_shape(model, shape, settings, PlacementLimits(**limits), exact=exact)
        report = placer.report(model, placement, shape)
        if fitted.note is not None:
            report = msgspec.structs.replace(report, notes=(fitted.note, *report.notes))
        return report, placement

    def measured(self, model: str | None = None) -> "list[Report]":
        """Benchmarks of this machine, oldest first."""
        from engine.placement.results import Results

        return Results(self.paths.state / "bench.jsonl").all(model)

    def measured_before(self, report: "Report") -> "Report | None":
        """The newest earlier benchmark of the same model and settings."""
        from engine.placement.results import Results

        return Results(self.paths.state / "bench.jsonl").before(report)

    def as_csv(self, report: "Report") -> str:
        """A benchmark in llama-bench's columns."""
        from engine.placement.results import to_csv

        return to_csv(report)

    def picture(self, report: "Report") -> str:
        """A benchmark plotted as SVG."""
        from engine.job_kinds.bench.svg import draw

        return draw([report])

    def shapes(self) -> tuple[str, ...]:
        """Model shapes that can be measured without a file."""
        from engine.job_kinds.bench.shapes import SHAPES

        return tuple(SHAPES)

    def gguf_files(self, models: "Iterable[str]" = ()) -> "dict[str, Path]":
        """Files by model: the named models, or every local GGUF model. Raises: InputFault: not a GGUF model."""
        from engine.core.errors import InputFault
        from engine.message_catalog.reasons import because

        names = tuple(models)
        if not names:
            here = (e for e in self.models() if e.format == "gguf" and e.state == "online" and not e.problem)
            return {entry.id: entry.path for entry in here}
        ids = {name: self.model_settings.resolve(name, self.catalogue.get) for name in names}
        entries = {name: self.catalogue.get(model) for name, model in ids.items()}
        for name, entry in entries.items():
            if entry is None or entry.format != "gguf":
                raise InputFault(because("no_gguf_model", name=name), "model")
        return {name: entry.path for name, entry in entries.items() if entry is not None}

    def verify_devices(self, path: "Path", on_row: "Callable[[ComparedDevice], None]") -> "list[ComparedDevice]":
        """Compare every usable GPU and NPU with the CPU on one model; wrong ones are no longer used.

        on_row: called with each row when it is available. Raises: BadModelFile; EnvironmentFault: no such device.
        """
        import asyncio

        from engine.core.errors import EnvironmentFault
        from engine.message_catalog.reasons import because
        from engine.placement.device_verification import comparable, verify

        resources = self.placer.resources
        machine = resources.machine.full()
        if not any(comparable(d, r) for d in machine.devices for r in d.runtimes):
            raise EnvironmentFault(because("no_device_to_compare"))
        return asyncio.run(verify(str(path), machine, resources.checks, on_row))

    def shipped_engine(self) -> str:
        """The version of llama-cpp-python that ships with Tessera."""
        from engine.placement.results import shipped_version

        return shipped_version()

    def install_engine(
        self,
        store: "VersionStore",
        wheel: "Path",
        models: "Iterable[str]",
        on_row: "Callable[[Compared], None]",
        *,
        force: bool = False,
    ) -> str:
        """Add a wheel's version if its numbers are right and no GPU here is known to fail with it; return its name.

        force: known faults do not prevent it. Raises: EngineVersionRefused, OSError.
        """
        from engine.placement.engine_versions import install

        may_fail = (lambda _version: "") if force else self.engine_fault
        return install(store, wheel, self._golden(models), on_row, may_fail).version

    def fault_rules(self) -> "tuple[Rules, dict[str, str]]":
        """The rules of known faults, and for those that concern a GPU here its name and backend, by rule."""
        from devices.fault_rules import engine_builds, on_machine
        from devices.llama_cpp_versions.folder import chosen_version

        resources = self.placer.resources
        rules = resources.fault_rules.now()
        builds = engine_builds(rules, chosen_version())
        matches = on_machine(rules, resources.machine.settled(), builds)
        return rules, {rule.id: f"{device.name}, {backend}" for device, backend, rule in matches}

    def found_faults(self) -> "list[dict[str, Any]]":
        """Wrong results that device checks found here: device and settings, reason, operations, time."""
        names = ("what", "reason", "operations", "checked_at")
        return [{name: getattr(one, name) for name in names} for one in self.placer.resources.checks.wrong()]

    def wrong_answers(self) -> "tuple[WrongAnswers, ...]":
        """Wrong results found by comparing answers with the CPU on this computer; without texts."""
        from engine.placement.quarantine import canary_account

        return canary_account(self.paths.state).get().found

    def forget_fault(self, rule: str) -> bool:
        """Enable again what a comparison of answers disabled; False: no such rule. Raises: OSError."""
        from engine.placement.quarantine import forget

        return forget(self.placer.resources, rule)

    def engine_fault(self, version: str) -> str:
        """Why a version of llama-cpp-python must not be installed here, with the workaround; empty if it may be."""
        from engine.placement.engine_versions import faults_of

        resources = self.placer.resources
        faults = faults_of(version, resources.machine.settled(), resources.fault_rules.now())
        if not faults:
            return ""
        device, backend, rule = faults[0]
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        instead = f"; take {rule.then.engine}" if rule.then.engine else ""
        return f"on {device.name} with {backend}: {rule.title} ({rule.sources[0]}){more}{instead}"

    def use_engine(
        self, store: "VersionStore", version: str, model: str | None, on_row: "Callable[[Compared], None]"
    ) -> None:
        """Check a version again and use it, for all models or for one. Raises: EngineVersionRefused, InputFault."""
        from engine.placement.engine_versions import use

        path = self.gguf_files((model,))[model] if model else None
        use(store, version, self._golden(), on_row, for_model=path)

    def verify_engine(self, store: "VersionStore", on_row: "Callable[[Compared], None]") -> None:
        """Check the version in use again. Raises: EngineVersionRefused: it was rolled back."""
        from engine.placement.engine_versions import verify

        verify(store, self._golden(), on_row)

    def _golden(self, models: "Iterable[str]" = ()) -> "list[Path]":
        """The bundled model's file, and the files of these installed models. Raises: InputFault."""
        names = tuple(models)
        return [*sorted(BUNDLED_MODELS.glob("*.gguf"))[:1], *(self.gguf_files(names).values() if names else ())]

    def add_program(self, name: str, program: "Path", arguments: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """Add a build of llama-server; return its version and the devices it sees. Raises: InputFault, OSError."""
        build = self.programs.add(name, program, arguments)
        return build.version, build.devices

    def remove_program(self, name: str) -> tuple[str, ...]:
        """Remove a program from the list; return the models that it served. Raises: InputFault, OSError."""
        from engine.placement.model_settings import open_model_settings

        settings = open_model_settings(self.paths)
        self.programs.remove(name)
        served = settings.models_in(name)
        for model in served:
            settings.change(model, engine=None)
        return served

    def models_in(self, program: str) -> tuple[str, ...]:
        """Models that the user assigned to a program."""
        from engine.placement.model_settings import open_model_settings

        return open_model_settings(self.paths).models_in(program)

    @cached_property
    def programs(self) -> "ProgramStore":
        """Programs that the user added to serve models."""
        from engine.placement.external import open_programs

        return open_programs(self.paths)

    def close(self) -> None:
        """Close the library if it was opened here."""
        if self._opened is None and "catalogue" in vars(self):
            self.catalogue.close()
