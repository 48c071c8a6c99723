"""Results of a measurement, as they are stored and exported."""

import msgspec


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Median and extremes of the repeats."""

    median: float
    low: float
    high: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence behind a prompt of `length` tokens: speeds in tokens/s, times in seconds."""

    length: int
    prefill_tok_s: Spread
    decode_tok_s: Spread
    ttft_s: Spread


class Concurrency(msgspec.Struct, frozen=True, kw_only=True):
    """`parallel` sequences at once: tokens/s of all together."""

    parallel: int
    total_tok_s: Spread


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one model on this machine.

    `drift` is the decode speed at the end divided by that at the start: below 0.9 the machine got slower meanwhile,
    by heat or by other work. `stand_in`: random weights of the model's shape.
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
