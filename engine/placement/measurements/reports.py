"""Results of a measurement, as they are stored and exported."""

import msgspec


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Median and extremes of the repeats."""

    median: float
    low: float
    high: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence behind a prompt of `length` tokens: speeds in tokens/s, times in seconds.

    `itl_s`: 50, 90 and 99 % of the gaps between tokens were shorter. `power_w`: mean meanwhile, where readable.
    `tokens_per_joule`: generated, for what was drawn beyond the computer's rest; the prompts' joules count too.
    """

    length: int
    prefill_tok_s: Spread
    decode_tok_s: Spread
    ttft_s: Spread
    itl_s: tuple[float, ...] = ()
    power_w: float | None = None
    tokens_per_joule: float | None = None


class Concurrency(msgspec.Struct, frozen=True, kw_only=True):
    """`parallel` sequences at once: tokens/s of all together."""

    parallel: int
    total_tok_s: Spread


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one model on this machine.

    `drift` is the decode speed at the end divided by that at the start: below 0.9 the machine got slower meanwhile,
    by heat or by other work. `stand_in`: random weights of the model's shape. `shape_key` and `machine_key` tell
    which results are of the same tensors and of the same machine, driver and build. `tokens` were generated behind
    each prompt. `idle_w` was drawn before the load; its name on disk and on the wire is `rest_w`.
    """

    model: str
    description: str
    size_bytes: int
    n_params: int
    backend: str
    machine: str
    threads: int
    type_k: str
    type_v: str
    load_s: float
    rss_bytes: int
    points: tuple[Point, ...]
    concurrency: tuple[Concurrency, ...]
    drift: float
    stand_in: bool
    started_at: float
    shape_key: str = ""
    machine_key: str = ""
    tokens: int = 32
    n_batch: int = 2048
    n_ubatch: int = 512
    flash_attn: str = "auto"
    use_mmap: bool = True
    n_gpu_layers: int = 0
    idle_w: float | None = msgspec.field(default=None, name="rest_w")

    @property
    def decode_tok_s(self) -> float:
        """Tokens/s behind the shortest prompt."""
        return min(self.points, key=lambda p: p.length).decode_tok_s.median


class TypePrices(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds of decoding for one weight, by type name, with these devices and threads."""

    machine_key: str
    devices: tuple[str, ...]
    threads: int
    ns_per_weight: dict[str, float]
    measured_at: float
