"""All routes that terminal and window use, with their request and response types.

Calls block, so a window makes them on worker threads. All raise ApiError.
"""

from collections.abc import Mapping
from contextlib import closing
from types import NoneType
from typing import Any

from app.client.chat_client import ChatClient
from app.client.chat_stream import ChatRoutes
from app.client.discovery import chosen_server, server_here
from app.client.transport import OURS, Stream, Transport, path_part
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
from engine.api.hub import CompareUploadsRequest, RepoPlan, SearchResults, Starters, Updates
from engine.api.jobs import Job, Jobs
from engine.api.library import (
    Freed,
    ImportRequest,
    Linked,
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

    def job_action(self, job: str, action: str) -> Job:
        """Change a job: `action` is `pause`, `resume`, `finish` or `cancel`."""
        return self.post(f"{OURS}/jobs/{path_part(job)}/{action}", Job)

    def pull(self, request: PullRequest) -> Job:
        """Start a download."""
        return self.post(f"{OURS}/models/pull", Job, request)

    def import_model(self, path: str) -> Job:
        """Start copying a file or folder into the library."""
        return self.post(f"{OURS}/models/import", Job, ImportRequest(path=path))

    def convert(self, request: ConvertRequest) -> Job:
        """Start converting a Hugging Face folder to a GGUF file."""
        return self.post(f"{OURS}/models/convert", Job, request)

    def speech(self) -> SpeechState:
        """The speech model and its languages."""
        return self.get(f"{OURS}/speech", SpeechState)

    def transcribe(self, sound: bytes) -> SpokenText:
        """The words of a recording, a WAV file."""
        return self.post(f"{OURS}/speech", SpokenText, SpeechRequest(sound=sound))

    def fetch_speech_model(self) -> Job:
        """Start downloading the speech model."""
        return self.post(f"{OURS}/speech/model", Job)

    def converter(self) -> ConverterState:
        """State of llama.cpp's converter, and the cost of installing it."""
        return self.get(f"{OURS}/converter", ConverterState)

    def fetch_converter(self) -> Job:
        """Start downloading llama.cpp's converter."""
        return self.post(f"{OURS}/converter", Job)

    def remove_converter(self) -> ConverterRemoved:
        """Remove llama.cpp's converter."""
        return self.delete(f"{OURS}/converter", ConverterRemoved)

    def convert_onnx(self, request: OnnxConvertRequest) -> Job:
        """Start converting a GGUF model to an ONNX folder."""
        return self.post(f"{OURS}/onnx/convert", Job, request)

    def verify(self, model: str) -> Job:
        """Start verifying the hashes of a model's files."""
        return self.post(f"{OURS}/models/{path_part(model)}/verify", Job)

    def bench(self, request: BenchRequest) -> Job:
        """Start a benchmark."""
        return self.post(f"{OURS}/bench", Job, request)

    def price_types(self) -> Job:
        """Start measuring the relative cost of each quantization type."""
        return self.post(f"{OURS}/bench/types", Job)

    def compare_places(self, request: CompareRequest) -> Job:
        """Start measuring a model on each place that could run it."""
        return self.post(f"{OURS}/bench/places", Job, request)

    def autotune(self, request: TuneRequest) -> Job:
        """Start a search for the fastest settings, or those with the most tokens per joule."""
        return self.post(f"{OURS}/autotune", Job, request)

    def quantize_plan(self, request: QuantizeOptions) -> QuantizeSketch:
        """Predict the plan of a quantization; writes nothing."""
        return self.post(f"{OURS}/quantize/plan", QuantizeSketch, request)

    def quick_test(self, request: QuickTestRequest) -> Job:
        """Start measuring what rounding all of a model's weights to 4 bits loses."""
        return self.post(f"{OURS}/quantize/quick-test", Job, request)

    def quantize(self, request: QuantizeOptions) -> Job:
        """Start quantizing a model."""
        return self.post(f"{OURS}/quantize", Job, request)


class Routes(ChatRoutes, JobRoutes):
    """All routes of the server, over any connection."""

    # ------------------------------------------------------------------ chat

    def replay(self, body: ReplayRequest) -> Replayed:
        """Repeat a receipt's response, or find what changes it."""
        return self.post(f"{OURS}/replay", Replayed, body)

    # ------------------------------------------------------------------ the library

    def library(self, *, refresh: bool = False) -> tuple[Model, ...]:
        """All models on this computer; `refresh` scans for new files first."""
        return self.get(f"{OURS}/models", Models, **({"refresh": True} if refresh else {})).models

    def model(self, model: str) -> Model:
        """One model with all its details."""
        return self.get(f"{OURS}/models/{path_part(model)}", Model)

    def tensors(self, model: str) -> Tensors:
        """Name, type, shape and size of every tensor of a GGUF file."""
        return self.get(f"{OURS}/models/{path_part(model)}/tensors", Tensors)

    def link(self, where: str) -> Linked:
        """Add models to the library without copying them."""
        return self.post(f"{OURS}/models/link", Linked, LinkRequest(where=where))

    def locate(self, model: str, path: str) -> Model:
        """Use the file at its new path as this model, which keeps its id, name and settings."""
        return self.post(f"{OURS}/models/{path_part(model)}/locate", Model, LocateRequest(path=path))

    def models_folder(self) -> ModelsFolder:
        """Where downloads and imports are stored."""
        return self.get(f"{OURS}/models-folder", ModelsFolder)

    def move_models(self, path: str) -> Job:
        """Start moving all models to a new or empty folder."""
        return self.post(f"{OURS}/models-folder/move", Job, MoveRequest(path=path))

    def rename(self, model: str, name: str) -> Model:
        """Set a model's display name; an empty name restores the original."""
        return self.put(f"{OURS}/models/{path_part(model)}/name", Model, RenameRequest(name=name))

    def remove(self, model: str) -> Removed:
        """Move a model to the trash; the ticket restores it."""
        return self.delete(f"{OURS}/models/{path_part(model)}", Removed)

    def restore(self, ticket: str) -> Model:
        """Restore a removed model."""
        return self.post(f"{OURS}/trash/{path_part(ticket)}/restore", Model)

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

    def compare_uploads(self, request: CompareUploadsRequest) -> Job:
        """Start estimating the loss of uploads of one model before a download."""
        return self.post(f"{OURS}/hub/compare", Job, request)

    def updates(self) -> Updates:
        """Models with a newer version on the hub."""
        return self.get(f"{OURS}/hub/updates", Updates)

    def update(self, model: str) -> Job:
        """Start downloading the newer version of a model."""
        return self.post(f"{OURS}/models/{path_part(model)}/update", Job)

    # ------------------------------------------------------------------ document collections

    def collections(self) -> tuple[Collection, ...]:
        """All collections with the state of their indexes."""
        return self.get(f"{OURS}/collections", Collections).collections

    def collection(self, key: str) -> Collection:
        """One collection, by id or name."""
        return self.get(f"{OURS}/collections/{path_part(key)}", Collection)

    def make_collection(self, request: CollectionRequest) -> Collection:
        """Create a collection and start indexing its files."""
        return self.post(f"{OURS}/collections", Collection, request)

    def change_collection(self, key: str, change: CollectionChange) -> Collection:
        """Add or remove sources, or change a collection's options."""
        return self.post(f"{OURS}/collections/{path_part(key)}", Collection, change)

    def remove_collection(self, key: str) -> CollectionRemoved:
        """Remove a collection; its files stay."""
        return self.delete(f"{OURS}/collections/{path_part(key)}", CollectionRemoved)

    def refresh_collection(self, key: str) -> Collection:
        """Scan a collection's files now."""
        return self.post(f"{OURS}/collections/{path_part(key)}/refresh", Collection)

    def search_collection(self, key: str, request: SearchRequest) -> SearchAnswer:
        """Passages that are relevant to a query."""
        return self.post(f"{OURS}/collections/{path_part(key)}/search", SearchAnswer, request)

    def documents(self, key: str, after: str = "", *, problems: bool = False) -> Documents:
        """Documents of a collection, sorted by path, 100 per call."""
        query = {"after": after} if after else {}
        return self.get(f"{OURS}/collections/{path_part(key)}/documents", Documents, **query, problems=problems)

    def document_pages(self, key: str, document: int) -> DocumentPages:
        """A document and the list of its pages."""
        return self.get(f"{OURS}/collections/{path_part(key)}/documents/{document}", DocumentPages)

    def page_text(self, key: str, document: int, page: int, passage: int = 0) -> PageText:
        """Text of a page, with the position of a passage."""
        path = f"{OURS}/collections/{path_part(key)}/documents/{document}/pages/{page}"
        return self.get(path, PageText, passage=passage)

    # ------------------------------------------------------------------ the machine and loaded models

    def devices(self) -> Machine:
        """All information about the machine."""
        return self.get(f"{OURS}/devices", Machine)

    def live_devices(self) -> LiveDevices:
        """Load, temperature and power of each device."""
        return self.get(f"{OURS}/devices/live", LiveDevices)

    def ledger(self) -> LedgerState:
        """Memory pools and their reservations."""
        return self.get(f"{OURS}/ledger", LedgerState)

    def placement(self, model: str, choices: LoadOptions | None = None) -> PlacementAnswer:
        """Placement of a model, current or planned; with `choices`, for these load settings."""
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

    def load_settings(self, model: str) -> ModelLoadSettings:
        """The user's load settings for a model."""
        return self.get(f"{OURS}/models/{path_part(model)}/load-settings", ModelLoadSettings)

    def set_load_settings(self, model: str, choices: LoadOptions) -> ModelLoadSettings:
        """Set a model's load settings; without any value Tessera decides."""
        return self.put(f"{OURS}/models/{path_part(model)}/load-settings", ModelLoadSettings, choices)

    def pin(self, model: str, device: str | None) -> Pinned:
        """Pin a model to a device; None removes the pin."""
        return self.post(f"{OURS}/models/{path_part(model)}/pin", Pinned, PinRequest(device=device))

    def set_engine(self, model: str, engine: str | None) -> ModelEngine:
        """Let an added program serve a model; None selects Tessera's engine."""
        return self.put(f"{OURS}/models/{path_part(model)}/engine", ModelEngine, EngineRequest(engine=engine))

    def loaded(self) -> tuple[LoadedModel, ...]:
        """Models that are loaded or loading, or whose runner died."""
        return self.get(f"{OURS}/loaded", LoadedModels).models

    def load(self, model: str, request: LoadRequest | None = None) -> LoadedModel:
        """Load a model now."""
        return self.post(f"{OURS}/models/{path_part(model)}/load", LoadedModel, request)

    def set_alias(self, alias: str, model: str) -> Alias:
        """Create an alias for a model: a name or a pattern."""
        return self.put(f"{OURS}/aliases/{path_part(alias)}", Alias, AliasRequest(model=model))

    def remove_alias(self, alias: str) -> None:
        """Remove an alias."""
        self.delete(f"{OURS}/aliases/{path_part(alias)}", NoneType)

    def engine_args(self, model: str) -> ModelEngineArgs:
        """Raw engine arguments of a model."""
        return self.get(f"{OURS}/models/{path_part(model)}/engine_args", ModelEngineArgs)

    def set_engine_args(self, model: str, values: EngineArgs) -> ModelEngineArgs:
        """Test engine arguments for a model and store them."""
        path = f"{OURS}/models/{path_part(model)}/engine_args"
        return self.put(path, ModelEngineArgs, EngineArgsRequest(engine_args=values))

    def sampling(self, model: str) -> ModelSampling:
        """A model's sampling values with their sources."""
        return self.get(f"{OURS}/models/{path_part(model)}/sampling", ModelSampling)

    def set_sampling(self, model: str, values: Mapping[str, float | int]) -> ModelSampling:
        """Set the user's sampling values for a model; without any the recommended values apply."""
        return self.put(f"{OURS}/models/{path_part(model)}/sampling", ModelSampling, {"values": dict(values)})

    def unload(self, model: str) -> Unloaded:
        """Unload a model from memory."""
        return self.post(f"{OURS}/models/{path_part(model)}/unload", Unloaded)

    # ------------------------------------------------------------------ upstream servers

    def upstreams(self, *, check: bool = False) -> Upstreams:
        """Upstream servers and their rules; `check` probes each of them now."""
        return self.get(f"{OURS}/upstreams", Upstreams, **({"check": True} if check else {}))

    def put_upstream(self, name: str, request: UpstreamRequest) -> UpstreamRow:
        """Add or change an upstream server."""
        return self.put(f"{OURS}/upstreams/{path_part(name)}", UpstreamRow, request)

    def check_upstream(self, name: str) -> UpstreamRow:
        """Probe an upstream server now."""
        return self.post(f"{OURS}/upstreams/{path_part(name)}/check", UpstreamRow)

    def set_upstream_key(self, name: str, key: str | None) -> UpstreamRow:
        """Set or remove an upstream server's key."""
        return self.put(f"{OURS}/upstreams/{path_part(name)}/key", UpstreamRow, UpstreamKeyRequest(key=key))

    def remove_upstream(self, name: str) -> None:
        """Remove an upstream server, its key and its rules."""
        self.delete(f"{OURS}/upstreams/{path_part(name)}", NoneType)

    def put_upstream_rule(self, rule: UpstreamRule) -> Upstreams:
        """Route requests for a model to an upstream server."""
        return self.put(f"{OURS}/upstream-rules", Upstreams, rule)

    def remove_upstream_rule(self, model: str) -> None:
        """Remove a routing rule."""
        self.delete(f"{OURS}/upstream-rules?model={path_part(model)}", NoneType)

    # ------------------------------------------------------------------ layers on remote hosts

    def remotes(self) -> Remotes:
        """Remote hosts for layers, with the last probe results."""
        return self.get(f"{OURS}/remotes", Remotes)

    def put_remote(self, name: str, request: RemoteRequest) -> RemoteRow:
        """Add or change a remote host and probe it."""
        return self.put(f"{OURS}/remotes/{path_part(name)}", RemoteRow, request)

    def check_remote(self, name: str) -> RemoteRow:
        """Probe a remote host now and measure its connection."""
        return self.post(f"{OURS}/remotes/{path_part(name)}/check", RemoteRow)

    def remove_remote(self, name: str) -> None:
        """Remove a remote host."""
        self.delete(f"{OURS}/remotes/{path_part(name)}", NoneType)

    # ------------------------------------------------------------------ benchmarks

    def bench_results(self) -> BenchResults:
        """Benchmark results of this machine, newest first."""
        return self.get(f"{OURS}/bench", BenchResults)

    def speed_curve(self, model: str) -> SpeedCurve:
        """A model's speed over prompt lengths: forecast, measured points, and what is expected of both."""
        return self.get(f"{OURS}/bench/curve", SpeedCurve, model=model)

    def bench_shapes(self) -> Shapes:
        """Model shapes that can be measured without a file."""
        return self.get(f"{OURS}/bench/shapes", Shapes)

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

    def recent_requests(self) -> RecentActivity:
        """The latest requests and the programs that sent them."""
        return self.get(f"{OURS}/requests", RecentActivity)

    def keys(self) -> Keys:
        """API keys of this server."""
        return self.get(f"{OURS}/keys", Keys)

    def make_key(self, request: KeyRequest) -> NewKey:
        """Create an API key; the response is the only time that it is shown."""
        return self.post(f"{OURS}/keys", NewKey, request)

    def canary(self) -> CanaryState:
        """Results of answers that were compared with the processor's, and what was wrong."""
        return self.get(f"{OURS}/canary", CanaryState)

    def power(self) -> PowerState:
        """Power limits and current power."""
        return self.get(f"{OURS}/power", PowerState)

    def set_power(self, limits: PowerLimits) -> PowerState:
        """Set power limits; a missing value means no limit."""
        return self.put(f"{OURS}/power", PowerState, limits)

    def revoke_key(self, name: str) -> None:
        """Revoke a key."""
        self.delete(f"{OURS}/keys/{path_part(name)}", NoneType)


# The client with all routes.


class Client(ChatClient, Routes):
    """Client of one server with all routes."""


def running_server() -> Client | None:
    """See `chosen_server`. Raises: ApiError."""
    return chosen_server(Client)


def local_server() -> Client | None:
    """See `server_here`."""
    return server_here(Client)
