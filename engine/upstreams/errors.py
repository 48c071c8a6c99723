"""What goes wrong between here and an upstream; each says which one, what it said, and what to do."""

from engine.core.errors import EnvironmentFault, InputFault
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because


class UpstreamFault(EnvironmentFault):
    """The upstream or the way to it is the reason. `status` is its HTTP status, None where it gave none."""

    code = "upstream_failed"

    def __init__(self, upstream: str, message: str | Reason, status: int | None = None) -> None:
        super().__init__(message)
        self.upstream = upstream
        self.status = status


class UpstreamUnreachable(UpstreamFault):
    """Nothing answers at its address."""

    code = "upstream_unreachable"

    def __init__(self, upstream: str, url: str, why: str | Reason) -> None:
        super().__init__(upstream, because("upstream_unreachable", upstream=upstream, url=url, why=why))
        self.url = url
        self.reason = sentence(why)
        self._why = why

    @property
    def why(self) -> str | Reason:
        """What hinders it, without its name and address."""
        return self._why


class UpstreamRefusesKey(UpstreamFault):
    """It wants another key."""

    code = "upstream_refuses_key"

    def __init__(self, upstream: str, said: str) -> None:
        super().__init__(upstream, because("upstream_refuses_key", upstream=upstream, said=said))
        self.said = said


class UpstreamBusy(UpstreamFault):
    """It takes no more requests now."""

    code = "upstream_busy"


class UpstreamBrokeOff(UpstreamFault):
    """The answer ended in the middle."""

    code = "upstream_broke_off"


class NoRule(InputFault):
    """A model of an upstream was asked for, and no rule lets requests for it leave this machine."""

    code = "no_upstream_rule"

    def __init__(self, model: str, upstream: str) -> None:
        super().__init__(because("no_upstream_rule", model=model, upstream=upstream), "model")
        self.model = model
        self.upstream = upstream
