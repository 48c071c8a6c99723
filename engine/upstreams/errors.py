"""Errors of upstreams and the connections to them; each names the upstream, its message, and what to do."""

from engine.core.errors import EnvironmentFault, InputFault
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because


class UpstreamFault(EnvironmentFault):
    """The upstream or the connection to it failed. `status` is its HTTP status, None if there was none."""

    code = "upstream_failed"

    def __init__(self, upstream: str, message: str | Reason, status: int | None = None) -> None:
        super().__init__(message)
        self.upstream = upstream
        self.status = status


class UpstreamUnreachable(UpstreamFault):
    """No server replies at its address."""

    code = "upstream_unreachable"

    def __init__(self, upstream: str, url: str, why: str | Reason) -> None:
        super().__init__(upstream, because("upstream_unreachable", upstream=upstream, url=url, why=why))
        self.url = url
        self.reason = sentence(why)
        self._why = why

    @property
    def why(self) -> str | Reason:
        """The cause, without the upstream's name and address."""
        return self._why


class UpstreamRefusesKey(UpstreamFault):
    """The upstream rejects the key."""

    code = "upstream_refuses_key"

    def __init__(self, upstream: str, said: str) -> None:
        super().__init__(upstream, because("upstream_refuses_key", upstream=upstream, said=said))
        self.said = said


class UpstreamBusy(UpstreamFault):
    """The upstream does not accept more requests now."""

    code = "upstream_busy"


class UpstreamBrokeOff(UpstreamFault):
    """The response was cut off."""

    code = "upstream_broke_off"


class NoRule(InputFault):
    """The model belongs to another server, and no rule allows requests for it to leave this computer."""

    code = "no_upstream_rule"

    def __init__(self, model: str, upstream: str) -> None:
        super().__init__(because("no_upstream_rule", model=model, upstream=upstream), "model")
        self.model = model
        self.upstream = upstream
