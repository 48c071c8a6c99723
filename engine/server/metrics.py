"""The server's counters in Prometheus format."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from engine.api.stats import ModelUse
from engine.core.request_timing import current_clock
from engine.core.types import Timings, Usage
from engine.pool.loaded_model import LoadedModel
from engine.server.recent import note_usage
from engine.server.utilization import Utilization

_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ITL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """One registry per application, so that tests can run several."""

    def __init__(self, utilization: Utilization | None = None) -> None:
        self.registry = CollectorRegistry()
        if utilization is not None:
            self.registry.register(UtilizationGauges(utilization))
        self.requests = Counter(
            "tessera_requests", "Requests by route and outcome", ["route", "outcome"], registry=self.registry
        )
        self.prompt_tokens = Counter("tessera_prompt_tokens", "Tokens read", ["model"], registry=self.registry)
        self.cached_tokens = Counter(
            "tessera_cached_tokens", "Prompt tokens taken from the prefix cache", ["model"], registry=self.registry
        )
        self.generated_tokens = Counter(
            "tessera_generated_tokens", "Tokens generated", ["model"], registry=self.registry
        )
        self.joules = Counter(
            "tessera_energy_joules",
            "Energy of requests above the idle power of the computer",
            ["model"],
            registry=self.registry,
        )
        self.queue = Gauge("tessera_requests_active", "Requests running or waiting", registry=self.registry)
        self.ttft = Histogram(
            "tessera_time_to_first_token_seconds",
            "From submission to the first token",
            ["model"],
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self.inter_token = Histogram(
            "tessera_inter_token_seconds",
            "Mean gap between the tokens of a request",
            ["model"],
            buckets=_ITL_BUCKETS,
            registry=self.registry,
        )

    def use(self) -> tuple[ModelUse, ...]:
        """Use of each model so far, sorted by name."""
        counted = {
            "requests": _by_model(self.ttft, "_count"),
            "prompt_tokens": _by_model(self.prompt_tokens, "_total"),
            "cached_tokens": _by_model(self.cached_tokens, "_total"),
            "generated_tokens": _by_model(self.generated_tokens, "_total"),
        }
        names = sorted(set().union(*counted.values()))
        return tuple(
            ModelUse(model=name, **{field: counts.get(name, 0) for field, counts in counted.items()})
            for name in names
        )

    def embedded(self, model: str, tokens: int) -> None:
        """Count the tokens of one embedding or rerank request."""
        self.prompt_tokens.labels(model).inc(tokens)

    def finished(self, model: LoadedModel, usage: Usage, timings: Timings) -> None:
        """Count a finished generation and add its times to the request's clock."""
        name = model.id
        clock = current_clock()
        if clock is not None:
            clock.generated(name, timings)
        note_usage(name, usage, timings)
        self.prompt_tokens.labels(name).inc(usage.prompt_tokens)
        self.cached_tokens.labels(name).inc(usage.cached_tokens)
        self.generated_tokens.labels(name).inc(usage.completion_tokens)
        if timings.joules:
            self.joules.labels(name).inc(timings.joules)
        if timings.ttft_s > 0:
            self.ttft.labels(name).observe(timings.ttft_s)
        gaps = usage.completion_tokens - 1
        if gaps > 0:
            self.inter_token.labels(name).observe(timings.decode_s / gaps)


def _by_model(metric: Counter | Histogram, suffix: str) -> dict[str, int]:
    samples = (sample for family in metric.collect() for sample in family.samples)
    return {s.labels["model"]: round(s.value) for s in samples if s.name.endswith(suffix)}


class UtilizationGauges(Collector):
    """Gauges of the computer's last sample."""

    def __init__(self, utilization: Utilization) -> None:
        self._utilization = utilization

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The last sample as Prometheus gauges; unreadable values are omitted."""
        now = self._utilization.peek()
        if now is None:
            return
        yield _gauge("cpu_busy_ratio", "Share of the CPUs' time in the last second", now.cpu_frac)
        yield _gauge("memory_used_bytes", "Memory in use on the machine", now.memory_used_bytes)
        yield _gauge("memory_total_bytes", "Memory of the machine", now.memory_total_bytes)
        for name, words, value in (
            ("cpu_power_watts", "Power of the CPU package", now.cpu_power_w),
            ("battery_power_watts", "Power drawn from the battery", now.battery_w),
        ):
            if value is not None:
                yield _gauge(name, words, value)
        for field, name, words in (
            ("busy_frac", "device_busy_ratio", "Share of time a GPU or NPU was busy"),
            ("memory_used_bytes", "device_memory_used_bytes", "Memory in use on a GPU or NPU"),
            ("power_w", "device_power_watts", "Power of a GPU or NPU"),
        ):
            family = GaugeMetricFamily(f"tessera_{name}", words, labels=["device", "kind"])
            for device in now.devices:
                value = getattr(device, field)
                if value is not None:
                    family.add_metric([device.device, device.kind], value)
            if family.samples:
                yield family


def _gauge(name: str, words: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tessera_{name}", words, value=value)
