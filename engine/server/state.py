"""What the routes share: the models, the template renderer, access and counters."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request

from engine.chat.conversation import Conversations
from engine.chat.structured import ConstraintChecker
from engine.chat.template import TemplateRenderer
from engine.dispatch.placer import Placer
from engine.jobs import JobRegistry
from engine.pool import Pool
from engine.server.auth import Access
from engine.server.metrics import Metrics
from engine.server.models import ServedModels
from engine.server.recent import RecentRequests
from engine.server.responses.background import BackgroundJobs
from engine.server.responses.conversation_store import ConversationStore
from engine.server.responses.store import ResponseStore
from engine.server.utilization import Utilization
from engine.server.work_history import WorkHistory
from engine.time_spent import TimeLog

if TYPE_CHECKING:
    from engine.measure_jobs.work import Workshop


@dataclass
class ServerState:
    """One per application, reachable as `request.app.state.server`."""

    models: ServedModels
    pool: Pool
    access: Access
    placer: Placer
    jobs: JobRegistry = field(default_factory=JobRegistry)
    renderer: TemplateRenderer = field(default_factory=TemplateRenderer)
    checker: ConstraintChecker = field(default_factory=ConstraintChecker)
    metrics: Metrics = field(default_factory=Metrics)
    times: TimeLog = field(default_factory=TimeLog)
    utilization: Utilization | None = None
    history: WorkHistory = field(init=False)
    workshop: "Workshop | None" = None
    recent: RecentRequests = field(default_factory=RecentRequests)
    responses: ResponseStore = field(default_factory=ResponseStore)
    talks: ConversationStore = field(default_factory=ConversationStore)
    background: BackgroundJobs = field(default_factory=BackgroundJobs)
    conversations: Conversations = field(init=False)

    def __post_init__(self) -> None:
        self.conversations = Conversations(self.renderer, self.checker)
        self.history = WorkHistory(self.pool)
        if self.utilization is not None:
            self.utilization.also = self.history.sample


def server_state(request: Request) -> ServerState:
    """The state of the application that serves this request."""
    state = request.app.state.server
    assert isinstance(state, ServerState)
    return state
