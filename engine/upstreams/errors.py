"""What goes wrong between here and an upstream; each says which one, what it said, and what to do."""

from engine.errors import EnvironmentFault, InputFault


class UpstreamFault(EnvironmentFault):
    """The upstream or the way to it is the reason. `status` is its HTTP status, None where it gave none."""

    code = "upstream_failed"

    def __init__(self, upstream: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.upstream = upstream
        self.status = status


class UpstreamUnreachable(UpstreamFault):
    """Nothing answers at its address."""

    code = "upstream_unreachable"

    def __init__(self, upstream: str, url: str, reason: str) -> None:
        super().__init__(
            upstream,
            f"{upstream} cannot be reached at {url}: {reason}. Check it: tessera upstreams check {upstream}",
        )
        self.url = url
        self.reason = reason


class UpstreamRefusesKey(UpstreamFault):
    """It wants another key."""

    code = "upstream_refuses_key"

    def __init__(self, upstream: str, said: str) -> None:
        super().__init__(
            upstream, f"{upstream} refuses the key ({said}). Give it another: tessera upstreams key {upstream}"
        )
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
        super().__init__(
            f"{model} runs on {upstream}, and nothing is sent there without your rule. "
            f"To allow it: tessera upstreams route '{model}' {upstream}",
            "model",
        )
        self.model = model
        self.upstream = upstream
