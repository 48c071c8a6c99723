"""Every route the terminal and the window use, with the types it takes and returns.

Calls block, so a window makes them on worker threads. All raise ApiError.
"""

from collections.abc import Mapping
from contextlib import closing
from types import NoneType
from typing import Any

from app.client.chat_client import ChatClient
from app.client.chat_routes import ChatRoutes
from app.client.discovery import chosen_server, server_here
from app.client.transport import OURS, Asking, Stream, path_part
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
from engine.api.hub import RepoPlan, SearchResults, Starters, Updates
from engine.api.jobs import Job, Jobs
from engine.api.library import (
    Freed,
    ImportRequest,
    Linked,
    LinkRequest,
    Model,
    Models,
    PullRequest,
    Removed,
    RenameRequest,
    Tensors,
    Trash,
)
from engine.api.machine import (
    LedgerState,
    LiveDevices,
    Machine,
    Pinned,
    PinRequest,
    PlacementAnswer,
    PowerLimits,
    PowerState,
)
from engine.api.measuring import BenchRequest, BenchResults, Shapes, TuneRequest
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
from engine.api.stats import Stats, UsageSamples, Work, WorkSamples
from engine.api.upstreams import UpstreamKeyRequest, UpstreamRequest, UpstreamRow, UpstreamRule, Upstreams
from engine.core.paths import Paths
from engine.runner.engine_args import EngineArgs


class JobRoutes(Asking):
    """Jobs of a server."""

    def jobs(self) -> tuple[Job, ...]:
        """Every job, newest first."""
        return self.get(f"{OURS}/jobs", Jobs).jobs

    def events_of(self, job: str) -> Stream[Job]:
        """One job's state now, then every change, to its end."""
        return self.stream(f"{OURS}/jobs/{path_part(job)}/events", Job)

    def job_events(self) -> Stream[Job]:
        """Each job's state now, then every change."""
        return self.stream(f"{OURS}/jobs/events", Job)

    def job_action(self, job: str, action: str) -> Job:
        """`pause`, `resume` or `cancel` a job."""
        return self.post(f"{OURS}/jobs/{path_part(job)}/{action}", Job)

    def pull(self, request: PullRequest) -> Job:
        """Start a download."""
        return self.post(f"{OURS}/models/pull", Job, request)

    def import_model(self, path: str) -> Job:
        """Start copying a file or folder into the library."""
        return self.post(f"{OURS}/models/import", Job, ImportRequest(path=path))

    def convert(self, request: ConvertRequest) -> Job:
        """Start making a GGUF file of a Hugging Face folder."""
        return self.post(f"{OURS}/models/convert", Job, request)

    def converter(self) -> ConverterState:
        """Whether llama.cpp's converter is here, and what getting it takes."""
        return self.get(f"{OURS}/converter", ConverterState)

    def fetch_converter(self) -> Job:
        """Start fetching llama.cpp's converter."""
        return self.post(f"{OURS}/converter", Job)

    def remove_converter(self) -> ConverterRemoved:
        """Remove llama.cpp's converter."""
        return self.delete(f"{OURS}/converter", ConverterRemoved)

    def convert_onnx(self, request: OnnxConvertRequest) -> Job:
        """Start making an ONNX folder of a GGUF model."""
        return self.post(f"{OURS}/onnx/convert", Job, request)

    def verify(self, model: str) -> Job:
        """Start hashing a model's files."""
        return self.post(f"{OURS}/models/{path_part(model)}/verify", Job)

    def bench(self, request: BenchRequest) -> Job:
        """Start measuring."""
        return self.post(f"{OURS}/bench", Job, request)

    def price_types(self) -> Job:
        """Start measuring what each quantization type costs."""
        return self.post(f"{OURS}/bench/types", Job)

    def autotune(self, request: TuneRequest) -> Job:
        """Start looking for the fastest settings, or those of most tokens per joule."""
        return self.post(f"{OURS}/autotune", Job, request)

    def quantize_plan(self, request: QuantizeOptions) -> QuantizeSketch:
        """The likely plan of a quantization; nothing is written."""
        return self.post(f"{OURS}/quantize/plan", QuantizeSketch, request)

    def quantize(self, request: QuantizeOptions) -> Job:
        """Start making a model fit."""
        return self.post(f"{OURS}/quantize", Job, request)


class Routes(ChatRoutes, JobRoutes):
    """The server's routes over any connection to it."""

    # ------------------------------------------------------------------ chat

    def replay(self, body: ReplayRequest) -> Replayed:
        """Give a receipt's answer again, or find what makes it another."""
        return self.post(f"{OURS}/replay", Replayed, body)

    # ------------------------------------------------------------------ the library

    def library(self, *, refresh: bool = False) -> tuple[Model, ...]:
        """Every model on this computer; `refresh` looks for new files first."""
        return self.get(f"{OURS}/models", Models, **({"refresh": True} if refresh else {})).models

    def model(self, model: str) -> Model:
        """One model with everything known about it."""
        return self.get(f"{OURS}/models/{path_part(model)}", Model)

    def tensors(self, model: str) -> Tensors:
        """Name, type, shape and bytes of every tensor of a GGUF file."""
        return self.get(f"{OURS}/models/{path_part(model)}/tensors", Tensors)

    def link(self, where: str) -> Linked:
        """Use models where they lie."""
        return self.post(f"{OURS}/models/link", Linked, LinkRequest(where=where))

    def rename(self, model: str, name: str) -> Model:
        """Give a model another name for people; an empty one goes back to its own."""
        return self.put(f"{OURS}/models/{path_part(model)}/name", Model, RenameRequest(name=name))

    def remove(self, model: str) -> Removed:
        """Remove a model; its ticket brings it back."""
        return self.delete(f"{OURS}/models/{path_part(model)}", Removed)

    def restore(self, ticket: str) -> Model:
        """Undo a removal."""
        return self.post(f"{OURS}/trash/{path_part(ticket)}/restore", Model)

    def trash(self) -> tuple[Removed, ...]:
        """Removed models that can be brought back, newest first."""
        return self.get(f"{OURS}/trash", Trash).trash

    def empty_trash(self) -> int:
        """Delete removed models for good; tells the bytes that came free."""
        return self.delete(f"{OURS}/trash", Freed).freed_bytes

    # ------------------------------------------------------------------ the hub

    def starters(self) -> Starters:
        """Models to begin with that fit this machine."""
        return self.get(f"{OURS}/hub/starters", Starters)

    def search_hub(self, text: str, task: str = "", parameters: str = "", sort: str = "") -> SearchResults:
        """Repositories on the hub; `parameters` as the hub writes it (`min:3B,max:9B`)."""
        query = {"task": task, "parameters": parameters, "sort": sort}
        chosen = {name: value for name, value in query.items() if value}
        return self.get(f"{OURS}/hub/search", SearchResults, text=text, **chosen)

    def plan_repository(self, repo: str) -> RepoPlan:
        """What each quantization of a repository needs here."""
        return self.get(f"{OURS}/hub/plan", RepoPlan, repo=repo)

    def updates(self) -> Updates:
        """Which models have a newer version on the hub."""
        return self.get(f"{OURS}/hub/updates", Updates)

    def update(self, model: str) -> Job:
        """Start fetching the newer version of a model."""
        return self.post(f"{OURS}/models/{path_part(model)}/update", Job)

    # ------------------------------------------------------------------ collections of documents

    def collections(self) -> tuple[Collection, ...]:
        """Every collection with the state of its index."""
        return self.get(f"{OURS}/collections", Collections).collections

    def collection(self, key: str) -> Collection:
        """One collection, by id or name."""
        return self.get(f"{OURS}/collections/{path_part(key)}", Collection)

    def make_collection(self, request: CollectionRequest) -> Collection:
        """Make a collection and begin to read its files."""
        return self.post(f"{OURS}/collections", Collection, request)

    def change_collection(self, key: str, change: CollectionChange) -> Collection:
        """Add and remove sources, or change how a collection is kept."""
        return self.post(f"{OURS}/collections/{path_part(key)}", Collection, change)

    def remove_collection(self, key: str) -> CollectionRemoved:
        """Forget a collection; the files stay."""
        return self.delete(f"{OURS}/collections/{path_part(key)}", CollectionRemoved)

    def refresh_collection(self, key: str) -> Collection:
        """Look at a collection's files now."""
        return self.post(f"{OURS}/collections/{path_part(key)}/refresh", Collection)

    def search_collection(self, key: str, request: SearchRequest) -> SearchAnswer:
        """Passages that bear on a question."""
        return self.post(f"{OURS}/collections/{path_part(key)}/search", SearchAnswer, request)

    def documents(self, key: str, after: str = "", *, problems: bool = False) -> Documents:
        """Documents of a collection by path, a hundred at a time."""
        query = {"after": after} if after else {}
        return self.get(f"{OURS}/collections/{path_part(key)}/documents", Documents, **query, problems=problems)

    def document_pages(self, key: str, document: int) -> DocumentPages:
        """A document and its pages."""
        return self.get(f"{OURS}/collections/{path_part(key)}/documents/{document}", DocumentPages)

    def page_text(self, key: str, document: int, page: int, passage: int = 0) -> PageText:
        """A page of a document, with the place of a passage."""
        path = f"{OURS}/collections/{path_part(key)}/documents/{document}/pages/{page}"
        return self.get(path, PageText, passage=passage)

    # ------------------------------------------------------------------ the machine, and what is loaded

    def devices(self) -> Machine:
        """Everything known about the machine."""
        return self.get(f"{OURS}/devices", Machine)

    def live_devices(self) -> LiveDevices:
        """How busy, warm and hungry each device is."""
        return self.get(f"{OURS}/devices/live", LiveDevices)

    def ledger(self) -> LedgerState:
        """Pools of memory, and who holds what of them."""
        return self.get(f"{OURS}/ledger", LedgerState)

    def placement(self, model: str, choices: LoadOptions | None = None) -> PlacementAnswer:
        """Where a model runs, or would run; with `choices`: if these were its load settings."""
        query: dict[str, Any] = {}
        if choices is not None:
            named = {
                "ctx": choices.n_ctx,
                "parallel": choices.n_parallel,
                "gpu_layers": choices.n_gpu_layers,
                "threads": choices.n_threads,
                "kv": choices.type_k,
            }
            query = {"saved": False, **{name: value for name, value in named.items() if value is not None}}
        return self.get(f"{OURS}/models/{path_part(model)}/placement", PlacementAnswer, **query)

    def load_settings(self, model: str) -> ModelLoadSettings:
        """What the user decided about the loads of a model."""
        return self.get(f"{OURS}/models/{path_part(model)}/load-settings", ModelLoadSettings)

    def set_load_settings(self, model: str, choices: LoadOptions) -> ModelLoadSettings:
        """Decide about the loads of a model; no choice at all leaves them to Tessera."""
        return self.put(f"{OURS}/models/{path_part(model)}/load-settings", ModelLoadSettings, choices)

    def pin(self, model: str, device: str | None) -> Pinned:
        """Keep a model on a device; None lets the server choose again."""
        return self.post(f"{OURS}/models/{path_part(model)}/pin", Pinned, PinRequest(device=device))

    def set_engine(self, model: str, engine: str | None) -> ModelEngine:
        """Let an added program serve a model; None: Tessera's own engine."""
        return self.put(f"{OURS}/models/{path_part(model)}/engine", ModelEngine, EngineRequest(engine=engine))

    def loaded(self) -> tuple[LoadedModel, ...]:
        """Models that are loaded, loading, or whose runner died."""
        return self.get(f"{OURS}/loaded", LoadedModels).models

    def load(self, model: str, request: LoadRequest | None = None) -> LoadedModel:
        """Load a model now."""
        return self.post(f"{OURS}/models/{path_part(model)}/load", LoadedModel, request)

    def set_alias(self, alias: str, model: str) -> Alias:
        """Let a name or a pattern stand for a model."""
        return self.put(f"{OURS}/aliases/{path_part(alias)}", Alias, AliasRequest(model=model))

    def remove_alias(self, alias: str) -> None:
        """Forget an alias."""
        self.delete(f"{OURS}/aliases/{path_part(alias)}", NoneType)

    def engine_args(self, model: str) -> ModelEngineArgs:
        """Raw engine arguments of a model."""
        return self.get(f"{OURS}/models/{path_part(model)}/engine_args", ModelEngineArgs)

    def set_engine_args(self, model: str, values: EngineArgs) -> ModelEngineArgs:
        """Try them and keep them."""
        path = f"{OURS}/models/{path_part(model)}/engine_args"
        return self.put(path, ModelEngineArgs, EngineArgsRequest(engine_args=values))

    def sampling(self, model: str) -> ModelSampling:
        """What a model samples with, and who decided it."""
        return self.get(f"{OURS}/models/{path_part(model)}/sampling", ModelSampling)

    def set_sampling(self, model: str, values: Mapping[str, float | int]) -> ModelSampling:
        """The user's own values for a model; none go back to what is recommended."""
        return self.put(f"{OURS}/models/{path_part(model)}/sampling", ModelSampling, {"values": dict(values)})

    def unload(self, model: str) -> Unloaded:
        """Take a model out of memory."""
        return self.post(f"{OURS}/models/{path_part(model)}/unload", Unloaded)

    # ------------------------------------------------------------------ other servers

    def upstreams(self, *, check: bool = False) -> Upstreams:
        """Other servers and the rules for them; `check` looks at each now."""
        return self.get(f"{OURS}/upstreams", Upstreams, **({"check": True} if check else {}))

    def put_upstream(self, name: str, request: UpstreamRequest) -> UpstreamRow:
        """Add another server, or change it."""
        return self.put(f"{OURS}/upstreams/{path_part(name)}", UpstreamRow, request)

    def check_upstream(self, name: str) -> UpstreamRow:
        """Look at it now."""
        return self.post(f"{OURS}/upstreams/{path_part(name)}/check", UpstreamRow)

    def set_upstream_key(self, name: str, key: str | None) -> UpstreamRow:
        """Give it another key, or none."""
        return self.put(f"{OURS}/upstreams/{path_part(name)}/key", UpstreamRow, UpstreamKeyRequest(key=key))

    def remove_upstream(self, name: str) -> None:
        """Forget it, its key and its rules."""
        self.delete(f"{OURS}/upstreams/{path_part(name)}", NoneType)

    def put_upstream_rule(self, rule: UpstreamRule) -> Upstreams:
        """Let requests for a model go there."""
        return self.put(f"{OURS}/upstream-rules", Upstreams, rule)

    def remove_upstream_rule(self, model: str) -> None:
        """Take that back."""
        self.delete(f"{OURS}/upstream-rules?model={path_part(model)}", NoneType)

    # ------------------------------------------------------------------ layers on other computers

    def remotes(self) -> Remotes:
        """Computers that hold layers, as they were last seen."""
        return self.get(f"{OURS}/remotes", Remotes)

    def put_remote(self, name: str, request: RemoteRequest) -> RemoteRow:
        """Add one, or change it, and look at it."""
        return self.put(f"{OURS}/remotes/{path_part(name)}", RemoteRow, request)

    def check_remote(self, name: str) -> RemoteRow:
        """Look at it now, and measure the way there."""
        return self.post(f"{OURS}/remotes/{path_part(name)}/check", RemoteRow)

    def remove_remote(self, name: str) -> None:
        """Forget it."""
        self.delete(f"{OURS}/remotes/{path_part(name)}", NoneType)

    # ------------------------------------------------------------------ what was measured

    def bench_results(self) -> BenchResults:
        """What was measured on this machine, newest first."""
        return self.get(f"{OURS}/bench", BenchResults)

    def bench_shapes(self) -> Shapes:
        """Shapes that can be measured without a file."""
        return self.get(f"{OURS}/bench/shapes", Shapes)

    # ------------------------------------------------------------------ the server itself

    def stats(self) -> Stats:
        """Speed, queue, memory and cache now."""
        with closing(self.stream(f"{OURS}/stats?once=true", Stats)) as events:
            return next(iter(events), Stats())

    def utilization(self, seconds: int) -> UsageSamples:
        """How busy the machine was in the last seconds."""
        return self.get(f"{OURS}/stats/utilization", UsageSamples, seconds=seconds)

    def work_history(self, seconds: int) -> tuple[Work, ...]:
        """What the server did in the last seconds, a sample a second."""
        return self.get(f"{OURS}/stats/history", WorkSamples, seconds=seconds).samples

    def recent_requests(self) -> RecentActivity:
        """The last requests and the programs that sent them."""
        return self.get(f"{OURS}/requests", RecentActivity)

    def keys(self) -> Keys:
        """Who else may use the server."""
        return self.get(f"{OURS}/keys", Keys)

    def make_key(self, request: KeyRequest) -> NewKey:
        """Make a key; it is shown this once."""
        return self.post(f"{OURS}/keys", NewKey, request)

    def power(self) -> PowerState:
        """What work may draw, and what it draws."""
        return self.get(f"{OURS}/power", PowerState)

    def set_power(self, limits: PowerLimits) -> PowerState:
        """Bound what work may draw; what is left out is not bounded."""
        return self.put(f"{OURS}/power", PowerState, limits)

    def revoke_key(self, name: str) -> None:
        """Revoke a key."""
        self.delete(f"{OURS}/keys/{path_part(name)}", NoneType)


# A client with every route.


class Client(ChatClient, Routes):
    """Speaks to one server about everything."""


def running_server(paths: Paths | None = None) -> Client | None:
    """As `chosen_server`. Raises: ApiError."""
    return chosen_server(Client, paths)


def local_server(paths: Paths | None = None) -> Client | None:
    """As `server_here`."""
    return server_here(Client, paths)
