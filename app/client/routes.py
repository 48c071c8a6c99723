"""Every route the terminal and the window use, with the types it takes and returns.

Calls block, so a window makes them on worker threads. All raise ApiError.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from types import NoneType
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from app.client.answers import AnswerStream, chat_body
from app.client.stream import Stream
from engine.api.chat import ChatChunk, ModelList, ModelRow, TokenCount
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
from engine.api.hub import RepoPlan, SearchResults, Starters
from engine.api.jobs import Job
from engine.api.keys import KeyRequest, Keys, NewKey
from engine.api.library import (
    ImportRequest,
    Linked,
    LinkRequest,
    Model,
    Models,
    PullRequest,
    Removed,
    RenameRequest,
    Tensors,
)
from engine.api.machine import LedgerState, LiveDevices, Machine, Pinned, PinRequest, PlacementAnswer
from engine.api.measuring import BenchRequest, BenchResults, Shapes, TuneRequest
from engine.api.models import (
    EngineArgsRequest,
    LoadChoices,
    LoadedModel,
    LoadedModels,
    LoadRequest,
    ModelEngineArgs,
    ModelLoadSettings,
    ModelSampling,
    Unloaded,
)
from engine.api.quantizing import QuantizeRequest, QuantizeSketch
from engine.api.receipts import Replayed, ReplayRequest
from engine.api.requests import RecentActivity
from engine.api.stats import Stats, UsageSamples, Work, WorkSamples
from engine.api.upstreams import UpstreamKeyRequest, UpstreamRequest, UpstreamRow, UpstreamRule, Upstreams
from engine.runner.engine_args import EngineArgs

T = TypeVar("T")
Body = msgspec.Struct | Mapping[str, Any] | None
_OURS: Final = "/tessera/v1"


class Routes(ABC):
    """The server's routes over any connection to it."""

    @abstractmethod
    def get(self, path: str, answer: type[T], **query: Any) -> T:
        """The answer of a GET. `query` is added to a path without a query."""

    @abstractmethod
    def post(self, path: str, answer: type[T], body: Body = None) -> T:
        """The answer of a POST."""

    @abstractmethod
    def put(self, path: str, answer: type[T], body: Body = None) -> T:
        """The answer of a PUT."""

    @abstractmethod
    def delete(self, path: str, answer: type[T]) -> T:
        """The answer of a DELETE."""

    @abstractmethod
    def stream(self, path: str, event: type[T], body: Body = None) -> Stream[T]:
        """Server-sent events: of a POST with a body, of a GET without."""

    # ------------------------------------------------------------------ chat

    def chat_models(self) -> tuple[ModelRow, ...]:
        """Models the server can load."""
        return self.get("/v1/models", ModelList).data

    def answer(self, body: Mapping[str, Any]) -> AnswerStream:
        """Stream the answer to a request of `chat_body`'s shape. Closing it stops the generation."""
        return AnswerStream(self.stream("/v1/chat/completions", ChatChunk, body))

    def replay(self, body: ReplayRequest) -> Replayed:
        """Give a receipt's answer again, or find what makes it another."""
        return self.post(f"{_OURS}/replay", Replayed, body)

    def chat(self, model: str, messages: list[dict[str, Any]], **options: Any) -> AnswerStream:
        """Stream an answer to a conversation."""
        return self.answer(chat_body(model, messages, options))

    def count_tokens(self, model: str, text: str) -> int:
        """Tokens of a text as the model counts them."""
        return self.post("/tokenize", TokenCount, {"model": model, "content": text}).count

    # ------------------------------------------------------------------ jobs

    def job_events(self) -> Stream[Job]:
        """Each job's state now, then every change."""
        return self.stream(f"{_OURS}/jobs/events", Job)

    def job_action(self, job: str, action: str) -> Job:
        """`pause`, `resume` or `cancel` a job."""
        return self.post(f"{_OURS}/jobs/{_name(job)}/{action}", Job)

    # ------------------------------------------------------------------ the library

    def library(self, *, refresh: bool = False) -> tuple[Model, ...]:
        """Every model on this computer; `refresh` looks for new files first."""
        return self.get(f"{_OURS}/models", Models, **({"refresh": True} if refresh else {})).models

    def model(self, model: str) -> Model:
        """One model with everything known about it."""
        return self.get(f"{_OURS}/models/{_name(model)}", Model)

    def tensors(self, model: str) -> Tensors:
        """Name, type, shape and bytes of every tensor of a GGUF file."""
        return self.get(f"{_OURS}/models/{_name(model)}/tensors", Tensors)

    def pull(self, request: PullRequest) -> Job:
        """Start a download."""
        return self.post(f"{_OURS}/models/pull", Job, request)

    def import_model(self, path: str) -> Job:
        """Start copying a file or folder into the library."""
        return self.post(f"{_OURS}/models/import", Job, ImportRequest(path=path))

    def link(self, where: str) -> Linked:
        """Use models where they lie."""
        return self.post(f"{_OURS}/models/link", Linked, LinkRequest(where=where))

    def rename(self, model: str, name: str) -> Model:
        """Give a model another name for people; an empty one goes back to its own."""
        return self.put(f"{_OURS}/models/{_name(model)}/name", Model, RenameRequest(name=name))

    def verify(self, model: str) -> Job:
        """Start hashing a model's files."""
        return self.post(f"{_OURS}/models/{_name(model)}/verify", Job)

    def remove(self, model: str) -> Removed:
        """Remove a model; its ticket brings it back."""
        return self.delete(f"{_OURS}/models/{_name(model)}", Removed)

    def restore(self, ticket: str) -> Model:
        """Undo a removal."""
        return self.post(f"{_OURS}/trash/{_name(ticket)}/restore", Model)

    # ------------------------------------------------------------------ the hub

    def starters(self) -> Starters:
        """Models to begin with that fit this machine."""
        return self.get(f"{_OURS}/hub/starters", Starters)

    def search_hub(self, text: str, task: str = "", parameters: str = "", sort: str = "") -> SearchResults:
        """Repositories on the hub; `parameters` as the hub writes it (`min:3B,max:9B`)."""
        query = {"task": task, "parameters": parameters, "sort": sort}
        chosen = {name: value for name, value in query.items() if value}
        return self.get(f"{_OURS}/hub/search", SearchResults, text=text, **chosen)

    def plan_repository(self, repo: str) -> RepoPlan:
        """What each quantization of a repository needs here."""
        return self.get(f"{_OURS}/hub/plan", RepoPlan, repo=repo)

    # ------------------------------------------------------------------ collections of documents

    def collections(self) -> tuple[Collection, ...]:
        """Every collection with the state of its index."""
        return self.get(f"{_OURS}/collections", Collections).collections

    def collection(self, key: str) -> Collection:
        """One collection, by id or name."""
        return self.get(f"{_OURS}/collections/{_name(key)}", Collection)

    def make_collection(self, request: CollectionRequest) -> Collection:
        """Make a collection and begin to read its files."""
        return self.post(f"{_OURS}/collections", Collection, request)

    def change_collection(self, key: str, change: CollectionChange) -> Collection:
        """Add and remove sources, or change how a collection is kept."""
        return self.post(f"{_OURS}/collections/{_name(key)}", Collection, change)

    def remove_collection(self, key: str) -> CollectionRemoved:
        """Forget a collection; the files stay."""
        return self.delete(f"{_OURS}/collections/{_name(key)}", CollectionRemoved)

    def refresh_collection(self, key: str) -> Collection:
        """Look at a collection's files now."""
        return self.post(f"{_OURS}/collections/{_name(key)}/refresh", Collection)

    def search_collection(self, key: str, request: SearchRequest) -> SearchAnswer:
        """Passages that bear on a question."""
        return self.post(f"{_OURS}/collections/{_name(key)}/search", SearchAnswer, request)

    def documents(self, key: str, after: str = "", *, problems: bool = False) -> Documents:
        """Documents of a collection by path, a hundred at a time."""
        query = {"after": after} if after else {}
        return self.get(f"{_OURS}/collections/{_name(key)}/documents", Documents, **query, problems=problems)

    def document_pages(self, key: str, document: int) -> DocumentPages:
        """A document and its pages."""
        return self.get(f"{_OURS}/collections/{_name(key)}/documents/{document}", DocumentPages)

    def page_text(self, key: str, document: int, page: int, passage: int = 0) -> PageText:
        """A page of a document, with the place of a passage."""
        path = f"{_OURS}/collections/{_name(key)}/documents/{document}/pages/{page}"
        return self.get(path, PageText, passage=passage)

    # ------------------------------------------------------------------ the machine, and what is loaded

    def devices(self) -> Machine:
        """Everything known about the machine."""
        return self.get(f"{_OURS}/devices", Machine)

    def live_devices(self) -> LiveDevices:
        """How busy, warm and hungry each device is."""
        return self.get(f"{_OURS}/devices/live", LiveDevices)

    def ledger(self) -> LedgerState:
        """Pools of memory, and who holds what of them."""
        return self.get(f"{_OURS}/ledger", LedgerState)

    def placement(self, model: str, choices: LoadChoices | None = None) -> PlacementAnswer:
        """Where a model runs, or would run; with `choices`: if these were its load settings."""
        query: dict[str, Any] = {}
        if choices is not None:
            named = {
                "ctx": choices.n_ctx,
                "parallel": choices.n_parallel,
                "gpu_layers": choices.n_gpu_layers,
                "threads": choices.n_threads,
                "kv": choices.kv_type,
            }
            query = {"saved": False, **{name: value for name, value in named.items() if value is not None}}
        return self.get(f"{_OURS}/models/{_name(model)}/placement", PlacementAnswer, **query)

    def load_settings(self, model: str) -> ModelLoadSettings:
        """What the user decided about the loads of a model."""
        return self.get(f"{_OURS}/models/{_name(model)}/load-settings", ModelLoadSettings)

    def set_load_settings(self, model: str, choices: LoadChoices) -> ModelLoadSettings:
        """Decide about the loads of a model; no choice at all leaves them to Tessera."""
        return self.put(f"{_OURS}/models/{_name(model)}/load-settings", ModelLoadSettings, choices)

    def pin(self, model: str, device: str | None) -> Pinned:
        """Keep a model on a device; None lets the server choose again."""
        return self.post(f"{_OURS}/models/{_name(model)}/pin", Pinned, PinRequest(device=device))

    def loaded(self) -> tuple[LoadedModel, ...]:
        """Models that are loaded, loading, or whose runner died."""
        return self.get(f"{_OURS}/loaded", LoadedModels).models

    def load(self, model: str, request: LoadRequest | None = None) -> LoadedModel:
        """Load a model now."""
        return self.post(f"{_OURS}/models/{_name(model)}/load", LoadedModel, request)

    def engine_args(self, model: str) -> ModelEngineArgs:
        """Raw engine arguments of a model."""
        return self.get(f"{_OURS}/models/{_name(model)}/engine_args", ModelEngineArgs)

    def set_engine_args(self, model: str, values: EngineArgs) -> ModelEngineArgs:
        """Try them and keep them."""
        path = f"{_OURS}/models/{_name(model)}/engine_args"
        return self.put(path, ModelEngineArgs, EngineArgsRequest(engine_args=values))

    def sampling(self, model: str) -> ModelSampling:
        """What a model samples with, and who decided it."""
        return self.get(f"{_OURS}/models/{_name(model)}/sampling", ModelSampling)

    def set_sampling(self, model: str, values: Mapping[str, float | int]) -> ModelSampling:
        """The user's own values for a model; none go back to what is recommended."""
        return self.put(f"{_OURS}/models/{_name(model)}/sampling", ModelSampling, {"values": dict(values)})

    def unload(self, model: str) -> Unloaded:
        """Take a model out of memory."""
        return self.post(f"{_OURS}/models/{_name(model)}/unload", Unloaded)

    # ------------------------------------------------------------------ other servers

    def upstreams(self, *, check: bool = False) -> Upstreams:
        """Other servers and the rules for them; `check` looks at each now."""
        return self.get(f"{_OURS}/upstreams", Upstreams, **({"check": True} if check else {}))

    def put_upstream(self, name: str, request: UpstreamRequest) -> UpstreamRow:
        """Add another server, or change it."""
        return self.put(f"{_OURS}/upstreams/{_name(name)}", UpstreamRow, request)

    def check_upstream(self, name: str) -> UpstreamRow:
        """Look at it now."""
        return self.post(f"{_OURS}/upstreams/{_name(name)}/check", UpstreamRow)

    def set_upstream_key(self, name: str, key: str | None) -> UpstreamRow:
        """Give it another key, or none."""
        return self.put(f"{_OURS}/upstreams/{_name(name)}/key", UpstreamRow, UpstreamKeyRequest(key=key))

    def remove_upstream(self, name: str) -> None:
        """Forget it, its key and its rules."""
        self.delete(f"{_OURS}/upstreams/{_name(name)}", NoneType)

    def put_upstream_rule(self, rule: UpstreamRule) -> Upstreams:
        """Let requests for a model go there."""
        return self.put(f"{_OURS}/upstream-rules", Upstreams, rule)

    def remove_upstream_rule(self, model: str) -> None:
        """Take that back."""
        self.delete(f"{_OURS}/upstream-rules?model={_name(model)}", NoneType)

    # ------------------------------------------------------------------ measuring and quantizing

    def bench_results(self) -> BenchResults:
        """What was measured on this machine, newest first."""
        return self.get(f"{_OURS}/bench", BenchResults)

    def bench_shapes(self) -> Shapes:
        """Shapes that can be measured without a file."""
        return self.get(f"{_OURS}/bench/shapes", Shapes)

    def bench(self, request: BenchRequest) -> Job:
        """Start measuring."""
        return self.post(f"{_OURS}/bench", Job, request)

    def autotune(self, request: TuneRequest) -> Job:
        """Start looking for the fastest settings."""
        return self.post(f"{_OURS}/autotune", Job, request)

    def quantize_plan(self, request: QuantizeRequest) -> QuantizeSketch:
        """The likely plan of a quantization; nothing is written."""
        return self.post(f"{_OURS}/quantize/plan", QuantizeSketch, request)

    def quantize(self, request: QuantizeRequest) -> Job:
        """Start making a model fit."""
        return self.post(f"{_OURS}/quantize", Job, request)

    # ------------------------------------------------------------------ the server itself

    def stats(self) -> Stats:
        """Speed, queue, memory and cache now."""
        with closing(self.stream(f"{_OURS}/stats?once=true", Stats)) as events:
            return next(iter(events), Stats())

    def utilization(self, seconds: int) -> UsageSamples:
        """How busy the machine was in the last seconds."""
        return self.get(f"{_OURS}/stats/utilization", UsageSamples, seconds=seconds)

    def work_history(self, seconds: int) -> tuple[Work, ...]:
        """What the server did in the last seconds, a sample a second."""
        return self.get(f"{_OURS}/stats/history", WorkSamples, seconds=seconds).samples

    def recent_requests(self) -> RecentActivity:
        """The last requests and the programs that sent them."""
        return self.get(f"{_OURS}/requests", RecentActivity)

    def keys(self) -> Keys:
        """Who else may use the server."""
        return self.get(f"{_OURS}/keys", Keys)

    def make_key(self, request: KeyRequest) -> NewKey:
        """Make a key; it is shown this once."""
        return self.post(f"{_OURS}/keys", NewKey, request)

    def revoke_key(self, name: str) -> None:
        """Revoke a key."""
        self.delete(f"{_OURS}/keys/{_name(name)}", NoneType)


def _name(text: str) -> str:
    return quote(text, safe="")
