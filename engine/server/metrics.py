"""The server's counters in Prometheus format."""

from engine.api.stats import ModelUse
from engine.core.request_timing import current_clock
from engine.core.types import Timings, Usage
from engine.pool.loaded_model import LoadedModel
from engine.server.exposition import Family, Histogram, Totals
from engine.server.recent import note_usage

_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ITL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """The metrics of one application, so that tests can run several."""

    def __init__(self) -> None:
        self.requests = Totals("tessera_requests", "Requests by route and outcome", ("route", "outcome"))
        self.prompt_tokens = Totals("tessera_prompt_tokens", "Tokens read", ("model",))
        self.cached_tokens = Totals(
            "tessera_cached_tokens", "Prompt tokens taken from the prefix cache", ("model",)
        )
        self.generated_tokens = Totals("tessera_generated_tokens", "Tokens generated", ("model",))
        self.joules = Totals(
            "tessera_energy_joules", "Energy of requests above the idle power of the computer", ("model",)
        )
        self.queue = Totals("tessera_requests_active", "Requests running or waiting", kind="gauge")
        self.ttft = Histogram(
            "tessera_time_to_first_token_seconds", "From submission to the first token", "model", _TTFT_BUCKETS
        )
        self.inter_token = Histogram(
            "tessera_inter_token_seconds", "Mean gap between the tokens of a request", "model", _ITL_BUCKETS
        )

    def families(self) -> list[Family]:
        """All of them, with their present values."""
        counters = (self.requests, self.prompt_tokens, self.cached_tokens, self.generated_tokens, self.joules)
        return [metric.family() for metric in (*counters, self.queue, self.ttft, self.inter_token)]

    def use(self) -> tuple[ModelUse, ...]:
        """Use of each model so far, sorted by name."""
        counted = {
            "requests": self.ttft.counts(),
            "prompt_tokens": _by_model(self.prompt_tokens),
            "cached_tokens": _by_model(self.cached_tokens),
            "generated_tokens": _by_model(self.generated_tokens),
        }
        names = sorted(set().union(*counted.values()))
        return tuple(
            ModelUse(model=name, **{field: counts.get(name, 0) for field, counts in counted.items()})
            for name in names
        )

    def embedded(self, model: str, tokens: int) -> None:
        """Count the tokens of one embedding or rerank request."""
        self.prompt_tokens.add(tokens, model)

    def finished(self, model: LoadedModel, usage: Usage, timings: Timings) -> None:
        """Count a finished generation and add its times to the request's clock."""
        name = model.id
        clock = current_clock()
        if clock is not None:
            clock.generated(name, timings)
        note_usage(name, usage, timings)
        self.prompt_tokens.add(usage.prompt_tokens, name)
        self.cached_tokens.add(usage.cached_tokens, name)
        self.generated_tokens.add(usage.completion_tokens, name)
        if timings.joules:
            self.joules.add(timings.joules, name)
        if timings.ttft_s > 0:
            self.ttft.observe(timings.ttft_s, name)
        gaps = usage.completion_tokens - 1
        if gaps > 0:
            self.inter_token.observe(timings.decode_s / gaps, name)


def _by_model(metric: Totals) -> dict[str, int]:
    return {sample.labels["model"]: round(sample.value) for sample in metric.family().samples}
