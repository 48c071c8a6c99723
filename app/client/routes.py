"""All routes that terminal and window use, with their request and response types (engine/api explains them).

Calls block, so a window makes them on worker threads. All raise ApiError.
"""

from collections.abc import Mapping
from contextlib import closing
from types import NoneType
from typing import Any

from app.client.chat_client import ChatClient
from app.client.chat_stream import ChatRoutes
from app.client.discovery import chosen_server
from app.client.transport import OURS, Route, Stream, Transport, path_part
from engine.api.collections import (
    Collection,
    CollectionChange,
    CollectionRequest,
    Collections,
    DocumentPages,
    Documents,
    PageText,
    SearchAnswer,
    SearchRequest,
)
from engine.api.collections import Removed as CollectionRemoved
from engine.api.converting import ConverterRemoved, ConverterState, ConvertRequest, OnnxConvertRequest
from engine.api.hub import CompareUploadsRequest, Folders, RepoPlan, SearchResults, Starters, Updates
from engine.api.jobs import Job, Jobs
from engine.api.library import (
    Freed,
    ImportRequest,
    Linked,
    LinkedFolders,
    LinkRequest,
    LocateRequest,
    Model,
    Models,
    ModelsFolder,
    MoveRequest,
    PullRequest,
    Removed,
    RenameRequest,
    Tensors,
    Trash,
    Unlinked,
)
from engine.api.machine import (
    CanaryState,
    LedgerState,
    LiveDevices,
    Machine,
    Pinned,
    PinRequest,
    PlacementAnswer,
    PowerLimits,
    PowerState,
)
from engine.api.measuring import (
    BenchRequest,
    BenchResults,
    CompareRequest,
    QuickTestRequest,
    Shapes,
    SpeedCurve,
    TuneRequest,
)
from engine.api.models import (
    Alias,
    AliasRequest,
    EngineArgsRequest,
    EngineRequest,
    LoadedModel,
    LoadedModels,
    LoadOptions,
    LoadRequest,
    ModelEngine,
    ModelEngineArgs,
    ModelLoadSettings,
    ModelSampling,
    Unloaded,
)
from engine.api.quantizing import QuantizeOptions, QuantizeSketch
from engine.api.receipts import Replayed, ReplayRequest
from engine.api.remotes import RemoteRequest, RemoteRow, Remotes
from engine.api.requests import KeyRequest, Keys, NewKey, RecentActivity
from engine.api.speech import SpeechRequest, SpeechState, SpokenText
from engine.api.stats import Stats, UsageSamples, Work, WorkSamples
from engine.api.upstreams import UpstreamKeyRequest, UpstreamRequest, UpstreamRow, UpstreamRule, Upstreams
from engine.runner.engine_args import EngineArgs


class JobRoutes(Transport):
    """Job routes of a server."""

    def jobs(self) -> tuple[Job, ...]:
        """All jobs, newest first."""
        return self.get(f"{OURS}/jobs", Jobs).jobs

    def events_of(self, job: str) -> Stream[Job]:
        """Stream a job's current state, then every change until it ends."""
        return self.stream(f"{OURS}/jobs/{path_part(job)}/events", Job)

    def job_events(self) -> Stream[Job]:
        """Stream the current state of all jobs, then every change."""
        return self.stream(f"{OURS}/jobs/events", Job)

    job_action = Route[[str, str], Job]("post", "/jobs/{}/{}", Job)
    pull = Route[[PullRequest], Job]("post", "/models/pull", Job)
    import_model = Route[[str], Job]("post", "/models/import", Job, ImportRequest)
    convert = Route[[ConvertRequest], Job]("post", "/models/convert", Job)
    speech = Route[[], SpeechState]("get", "/speech", SpeechState)
    transcribe = Route[[bytes], SpokenText]("post", "/speech", SpokenText, SpeechRequest)
    fetch_speech_model = Route[[], Job]("post", "/speech/model", Job)
    converter = Route[[], ConverterState]("get", "/converter", ConverterState)
    fetch_converter = Route[[], Job]("post", "/converter", Job)
    remove_converter = Route[[], ConverterRemoved]("delete", "/converter", ConverterRemoved)
    convert_onnx = Route[[OnnxConvertRequest], Job]("post", "/onnx/convert", Job)
    verify = Route[[str], Job]("post", "/models/{}/verify", Job)
    bench = Route[[BenchRequest], Job]("post", "/bench", Job)
    price_types = Route[[], Job]("post", "/bench/types", Job)
    compare_places = Route[[CompareRequest], Job]("post", "/bench/places", Job)
    autotune = Route[[TuneRequest], Job]("post", "/autotune", Job)
    quantize_plan = Route[[QuantizeOptions], QuantizeSketch]("post", "/quantize/plan", QuantizeSketch)
    quick_test = Route[[QuickTestRequest], Job]("post", "/quantize/quick-test", Job)
    quantize = Route[[QuantizeOptions], Job]("post", "/quantize", Job)


class Routes(ChatRoutes, JobRoutes):
    """All routes of the server, over any connection."""

    # ------------------------------------------------------------------ chat

    replay = Route[[ReplayRequest], Replayed]("post", "/replay", Replayed)

    # ------------------------------------------------------------------ the library

    def library(self, *, refresh: bool = False) -> tuple[Model, ...]:
        """All models on this computer; `refresh` scans for new files first."""
        return self.get(f"{OURS}/models", Models, **({"refresh": True} if refresh else {})).models

    model = Route[[str], Model]("get", "/models/{}", Model)
    tensors = Route[[str], Tensors]("get", "/models/{}/tensors", Tensors)
    link = Route[[str], Linked]("post", "/models/link", Linked, LinkRequest)
    foreign_folders = Route[[], Folders]("get", "/hub/folders", Folders)
    linked_folders = Route[[], LinkedFolders]("get", "/linked-folders", LinkedFolders)
    unlink = Route[[str], Unlinked]("delete", "/linked-folders?where={}", Unlinked)
    locate = Route[[str, str], Model]("post", "/models/{}/locate", Model, LocateRequest)
    models_folder = Route[[], ModelsFolder]("get", "/models-folder", ModelsFolder)
    move_models = Route[[str], Job]("post", "/models-folder/move", Job, MoveRequest)
    rename = Route[[str, str], Model]("put", "/models/{}/name", Model, RenameRequest)
    remove = Route[[str], Removed]("delete", "/models/{}", Removed)
    restore = Route[[str], Model]("post", "/trash/{}/restore", Model)

    def trash(self) -> tuple[Removed, ...]:
        """Models in the trash, newest first."""
        return self.get(f"{OURS}/trash", Trash).trash

    def empty_trash(self) -> int:
        """Delete the trash permanently; return the number of bytes freed."""
        return self.delete(f"{OURS}/trash", Freed).freed_bytes

    # ------------------------------------------------------------------ the hub

    def starters(self, *, check: bool = False) -> Starters:
        """Recommended first models that fit this machine; `check`: only those that the hub has now."""
        return self.get(f"{OURS}/hub/starters", Starters, **({"check": "true"} if check else {}))

    def search_hub(self, text: str, task: str = "", parameters: str = "", sort: str = "") -> SearchResults:
        """Search repositories on the hub; `parameters` has the hub's format (`min:3B,max:9B`)."""
        query = {"task": task, "parameters": parameters, "sort": sort}
        chosen = {name: value for name, value in query.items() if value}
        return self.get(f"{OURS}/hub/search", SearchResults, text=text, **chosen)

    def plan_repository(self, repo: str) -> RepoPlan:
        """Memory that each quantization of a repository needs on this machine."""
        return self.get(f"{OURS}/hub/plan", RepoPlan, repo=repo)

    compare_uploads = Route[[CompareUploadsRequest], Job]("post", "/hub/compare", Job)
    updates = Route[[], Updates]("get", "/hub/updates", Updates)
    update = Route[[str], Job]("post", "/models/{}/update", Job)

    # ------------------------------------------------------------------ document collections

    def collections(self) -> tuple[Collection, ...]:
        """All collections with the state of their indexes."""
        return self.get(f"{OURS}/collections", Collections).collections

    def collection_key(self, name: str) -> str:
        """The id of a collection whose name cannot be part of a path; else the name."""
        if "/" not in name and name.strip("."):
            return name
        return next((c.id for c in self.collections() if c.name.casefold() == name.casefold()), name)

    collection = Route[[str], Collection]("get", "/collections/{}", Collection)
    make_collection = Route[[CollectionRequest], Collection]("post", "/collections", Collection)
    change_collection = Route[[str, CollectionChange], Collection]("post", "/collections/{}", Collection)
    remove_collection = Route[[str], CollectionRemoved]("delete", "/collections/{}", CollectionRemoved)
    restore_collection = Route[[str], Collection]("post", "/collections/{}/restore", Collection)
    refresh_collection = Route[[str], Collection]("post", "/collections/{}/refresh", Collection)
    search_collection = Route[[str, SearchRequest], SearchAnswer]("post", "/collections/{}/search", SearchAnswer)

    def documents(self, key: str, after: str = "", *, problems: bool = False) -> Documents:
        """Documents of a collection, sorted by path, 100 per call."""
        query = {"after": after} if after else {}
        return self.get(f"{OURS}/collections/{path_part(key)}/documents", Documents, **query, problems=problems)

    document_pages = Route[[str, int], DocumentPages]("get", "/collections/{}/documents/{}", DocumentPages)

    def page_text(self, key: str, document: int, page: int, passage: int = 0) -> PageText:
        """Text of a page, with the position of a passage."""
        path = f"{OURS}/collections/{path_part(key)}/documents/{document}/pages/{page}"
        return self.get(path, PageText, passage=passage)

    # ------------------------------------------------------------------ the machine and loaded models

    devices = Route[[], Machine]("get", "/devices", Machine)
    live_devices = Route[[], LiveDevices]("get", "/devices/live", LiveDevices)
    ledger = Route[[], LedgerState]("get", "/ledger", LedgerState)

    def placement(self, model: str, choices: LoadOptions | None = None) -> PlacementAnswer:
        """Placement of a model, current or planned; if given, `choices` replace its load settings."""
        query: dict[str, Any] = {}
        if choices is not None:
            options = {
                "ctx": choices.n_ctx,
                "parallel": choices.n_parallel,
                "gpu_layers": choices.n_gpu_layers,
                "threads": choices.n_threads,
                "kv": choices.type_k,
            }
            query = {"saved": False, **{name: value for name, value in options.items() if value is not None}}
        return self.get(f"{OURS}/models/{path_part(model)}/placement", PlacementAnswer, **query)

    load_settings = Route[[str], ModelLoadSettings]("get", "/models/{}/load-settings", ModelLoadSettings)
    set_load_settings = Route[[str, LoadOptions], ModelLoadSettings](
        "put", "/models/{}/load-settings", ModelLoadSettings
    )
    pin = Route[[str, str | None], Pinned]("post", "/models/{}/pin", Pinned, PinRequest)
    set_engine = Route[[str, str | None], ModelEngine]("put", "/models/{}/engine", ModelEngine, EngineRequest)

    def loaded(self) -> tuple[LoadedModel, ...]:
        """Models that are loaded or loading, or whose runner died."""
        return self.get(f"{OURS}/loaded", LoadedModels).models

    def load(self, model: str, request: LoadRequest | None = None) -> LoadedModel:
        return self.post(f"{OURS}/models/{path_part(model)}/load", LoadedModel, request)

    set_alias = Route[[str, str], Alias]("put", "/aliases/{}", Alias, AliasRequest)
    remove_alias = Route[[str], None]("delete", "/aliases/{}", NoneType)
    engine_args = Route[[str], ModelEngineArgs]("get", "/models/{}/engine_args", ModelEngineArgs)
    set_engine_args = Route[[str, EngineArgs], ModelEngineArgs](
        "put", "/models/{}/engine_args", ModelEngineArgs, EngineArgsRequest
    )
    sampling = Route[[str], ModelSampling]("get", "/models/{}/sampling", ModelSampling)

    def set_sampling(self, model: str, values: Mapping[str, float | int]) -> ModelSampling:
        """Set the user's sampling values for a model; without any the recommended values apply."""
        return self.put(f"{OURS}/models/{path_part(model)}/sampling", ModelSampling, {"values": dict(values)})

    unload = Route[[str], Unloaded]("post", "/models/{}/unload", Unloaded)

    # ------------------------------------------------------------------ upstream servers

    def upstreams(self, *, check: bool = False) -> Upstreams:
        """Upstream servers and their rules; `check` probes each of them now."""
        return self.get(f"{OURS}/upstreams", Upstreams, **({"check": True} if check else {}))

    put_upstream = Route[[str, UpstreamRequest], UpstreamRow]("put", "/upstreams/{}", UpstreamRow)
    check_upstream = Route[[str], UpstreamRow]("post", "/upstreams/{}/check", UpstreamRow)
    set_upstream_key = Route[[str, str | None], UpstreamRow](
        "put", "/upstreams/{}/key", UpstreamRow, UpstreamKeyRequest
    )
    remove_upstream = Route[[str], None]("delete", "/upstreams/{}", NoneType)
    put_upstream_rule = Route[[UpstreamRule], Upstreams]("put", "/upstream-rules", Upstreams)
    remove_upstream_rule = Route[[str], None]("delete", "/upstream-rules?model={}", NoneType)

    # ------------------------------------------------------------------ layers on remote hosts

    remotes = Route[[], Remotes]("get", "/remotes", Remotes)
    put_remote = Route[[str, RemoteRequest], RemoteRow]("put", "/remotes/{}", RemoteRow)
    check_remote = Route[[str], RemoteRow]("post", "/remotes/{}/check", RemoteRow)
    remove_remote = Route[[str], None]("delete", "/remotes/{}", NoneType)

    # ------------------------------------------------------------------ benchmarks

    bench_results = Route[[], BenchResults]("get", "/bench", BenchResults)

    def speed_curve(self, model: str) -> SpeedCurve:
        """A model's speed over prompt lengths: forecast, measured points, and the speed expected from both."""
        return self.get(f"{OURS}/bench/curve", SpeedCurve, model=model)

    bench_shapes = Route[[], Shapes]("get", "/bench/shapes", Shapes)

    # ------------------------------------------------------------------ the server itself

    def stats(self) -> Stats:
        """Current speed, queue, memory and cache."""
        with closing(self.stream(f"{OURS}/stats?once=true", Stats)) as events:
            return next(iter(events), Stats())

    def utilization(self, seconds: int) -> UsageSamples:
        """Utilization of the machine over the last `seconds`."""
        return self.get(f"{OURS}/stats/utilization", UsageSamples, seconds=seconds)

    def work_history(self, seconds: int) -> tuple[Work, ...]:
        """Server activity over the last `seconds`."""
        return self.get(f"{OURS}/stats/history", WorkSamples, seconds=seconds).samples

    recent_requests = Route[[], RecentActivity]("get", "/requests", RecentActivity)
    keys = Route[[], Keys]("get", "/keys", Keys)
    make_key = Route[[KeyRequest], NewKey]("post", "/keys", NewKey)
    canary = Route[[], CanaryState]("get", "/canary", CanaryState)
    power = Route[[], PowerState]("get", "/power", PowerState)
    set_power = Route[[PowerLimits], PowerState]("put", "/power", PowerState)
    revoke_key = Route[[str], None]("delete", "/keys/{}", NoneType)


# The client with all routes.


class Client(ChatClient, Routes):
    """Client of one server with all routes."""


def running_server() -> Client | None:
    """See `chosen_server`. Raises: ApiError."""
    return chosen_server(Client)
