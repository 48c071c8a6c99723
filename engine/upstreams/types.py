"""An upstream, the user's rules for it, and its health."""

from typing import Final, Literal

import msgspec

from engine.message_catalog.reasons import Reason, because
from engine.placement.external import UPSTREAM_PREFIX

# Kinds of servers; each accepts other fields in addition to OpenAI's.
Kind = Literal["openai", "vllm", "sglang", "llama-server", "tessera", "flm"]
# The path that a runner gets: PREFIX, the upstream's name, a slash, the model's name there.
PREFIX: Final = UPSTREAM_PREFIX
# Assumed context if it is unknown: the server rejects prompts that are too long.
ASSUMED_CONTEXT: Final = 131_072


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `url` ends before `/v1`; `kind` None: detected from its list of models."""

    name: str
    url: str
    kind: Kind | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The user's permission for requests for a model to leave this machine.

    `model` is a name or a pattern such as `desk/*`; `as_model` is the model's name there (None: the same).
    With `queue` or `unfit` the model runs here first: a request is sent away if more than `queue` wait here, or if
    the model does not fit. With neither it is always sent.
    """

    model: str
    upstream: str
    as_model: str | None = None
    queue: int | None = None
    unfit: bool = False

    @property
    def always(self) -> bool:
        """Whether requests are sent without trying this machine first."""
        return self.queue is None and not self.unfit

    def fact(self) -> Reason:
        there: str | Reason = self.upstream
        if self.as_model:
            there = because("rule_there_as", upstream=self.upstream, model=self.as_model)
        when = [because("rule_queue", count=self.queue)] if self.queue is not None else []
        if self.unfit:
            when.append(because("rule_unfit"))
        if when:
            return because("rule_when", model=self.model, there=there, when=tuple(when))
        return because("rule_always", model=self.model, there=there)


class UpstreamModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of an upstream; `n_ctx` is 0 if not given."""

    name: str
    n_ctx: int = 0
    capabilities: tuple[str, ...] = ("completion", "chat", "tools")


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the last check of an upstream, at `at` (0: never); `latency_s` is that of its list of models."""

    state: Literal["unknown", "ok", "refused", "unreachable", "failed"] = "unknown"
    at: float = 0.0
    latency_s: float = 0.0
    reason: str | Reason = ""
    kind: Kind = "openai"
    models: tuple[UpstreamModel, ...] = ()


class SavedUpstreams(msgspec.Struct, frozen=True, kw_only=True):
    """The file of upstreams. Earlier rules win."""

    upstreams: tuple[Upstream, ...] = ()
    rules: tuple[Rule, ...] = ()
    models: dict[str, tuple[UpstreamModel, ...]] = {}


class UpstreamRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Route of a request: an upstream, the model's name there, and the rule that applies."""

    upstream: Upstream
    model: str
    rule: Rule

    def fact(self) -> Reason:
        """The note that every response carries."""
        name, url = self.upstream.name, self.upstream.url
        return because("answered_by", upstream=name, url=url, model=self.model, rule=self.rule.fact())
