"""What the routes share: the models, the template renderer, access and counters."""

from dataclasses import dataclass, field

from starlette.requests import Request

from engine.chat.template import TemplateRenderer
from engine.jobs import JobRegistry
from engine.pool import Pool
from engine.server.auth import Access
from engine.server.metrics import Metrics
from engine.server.models import ServedModels


@dataclass
class ServerState:
    """One per application, reachable as `request.app.state.server`."""

    models: ServedModels
    pool: Pool
    access: Access
    jobs: JobRegistry = field(default_factory=JobRegistry)
    renderer: TemplateRenderer = field(default_factory=TemplateRenderer)
    metrics: Metrics = field(default_factory=Metrics)


def server_state(request: Request) -> ServerState:
    """The state of the application that serves this request."""
    state = request.app.state.server
    assert isinstance(state, ServerState)
    return state
