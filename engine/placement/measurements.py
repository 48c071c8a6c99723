"""What a measurement of a model and a search for its fastest settings report."""

from typing import Literal

import msgspec

from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because
from engine.runner.protocol import LoadSettings


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


# Tokens of the answer in the turn that is timed: about a paragraph.
ANSWER_TOKENS = 128
# What settings are chosen by: the fewest seconds of a turn, or its fewest joules.
Goal = Literal["speed", "energy"]


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that autotune may change; names and meanings are those of LoadSettings.

    `kv_type` is the type of both caches. Hashable.
    """

    devices: tuple[str, ...] = ()
    tensor_split: tuple[float, ...] = ()
    n_gpu_layers: int = 0
    cpu_expert_layers: int = 0
    n_threads: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    flash_attn: str = "auto"
    kv_type: str = "f16"
    use_mmap: bool = True
    repack: bool = True
    tiles: tuple[str, ...] = ()
    max_draft: int = 16

    def apply(self, settings: LoadSettings) -> LoadSettings:
        """The settings with these knobs."""
        return msgspec.structs.replace(
            settings,
            devices=self.devices,
            tensor_split=self.tensor_split,
            n_gpu_layers=self.n_gpu_layers,
            cpu_expert_layers=self.cpu_expert_layers,
            n_threads=self.n_threads,
            n_threads_batch=self.n_threads,
            n_batch=self.n_batch,
            n_ubatch=self.n_ubatch,
            flash_attn=self.flash_attn,
            type_k=self.kv_type,
            type_v=self.kv_type,
            use_mmap=self.use_mmap,
            repack=self.repack,
            tiles=self.tiles,
            max_draft=self.max_draft,
        )


def knobs_of(settings: LoadSettings) -> Knobs:
    """The knobs of settings that were chosen without measuring."""
    return Knobs(
        devices=settings.devices,
        tensor_split=settings.tensor_split,
        n_gpu_layers=settings.n_gpu_layers,
        cpu_expert_layers=settings.cpu_expert_layers,
        n_threads=settings.n_threads,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        flash_attn=settings.flash_attn,
        kv_type=settings.type_k,
        use_mmap=settings.use_mmap,
        repack=settings.repack,
        tiles=settings.tiles,
        max_draft=settings.max_draft,
    )


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How much one trial measures: prompt tokens, answer tokens, and how often.

    `copying`: a text that repeats itself is continued instead, and only its decode speed counts. `joules`: they are
    counted too. A trial of the one kind is never taken for one of the other.
    """

    prompt: int
    answer: int
    repeats: int
    copying: bool = False
    joules: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial found. `failure` says why a point is bad; its speeds are 0 then.

    Speeds in tokens/s, `cost_s` is the wall time of the trial, load included. `joules` are those of each run beyond
    the computer's rest, `tokens_per_joule` counts the tokens generated in all of them; None where joules are not
    counted.
    """

    prefill_tok_s: float = 0.0
    decode_tok_s: float = 0.0
    cost_s: float = 0.0
    failure: str | None = None
    tokens_per_joule: float | None = None
    joules: tuple[float, ...] = ()

    def turn_s(self, prompt: int) -> float:
        """Seconds of one turn: read `prompt` tokens, answer with ANSWER_TOKENS. Infinite for a bad point."""
        if self.failure is not None or self.prefill_tok_s <= 0 or self.decode_tok_s <= 0:
            return float("inf")
        return prompt / self.prefill_tok_s + ANSWER_TOKENS / self.decode_tok_s

    def turn_j(self) -> float:
        """Joules of a turn beyond the computer's rest. Infinite where they are not known, and for a bad point."""
        if self.failure is not None or not self.tokens_per_joule:
            return float("inf")
        return ANSWER_TOKENS / self.tokens_per_joule


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the record: a point, how it was measured and what came out."""

    knobs: Knobs
    budget: Budget
    outcome: Outcome


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Why one setting has its value: seconds (`of` what) with it and with the next best value, in short rounds.

    Without seconds the next best value does not work. Where energy was the goal there are joules too, and a `note`
    on why a value of fewer joules was not taken.
    """

    name: str
    value: str
    turn_s: float
    against: str | None = None
    against_turn_s: float | None = None
    of: str = "a turn"
    turn_j: float | None = None
    against_turn_j: float | None = None
    note: str = ""

    def fact(self) -> Reason:
        """What was measured, for the dispatch card."""
        name, of = _fact(self.name), _fact(self.of)
        values = {"name": name, "value": _level(self.value), "took": _figures(self.turn_s, self.turn_j), "of": of}
        if self.against is None:
            return because("choice", **values)
        values["against"] = _level(self.against)
        if self.against_turn_s is None:
            return because("choice_other_failed", **values)
        values["against_took"] = _figures(self.against_turn_s, self.against_turn_j)
        if self.note:
            return because("choice_against_note", **values, note=_fact(self.note))
        return because("choice_against", **values)

    def words(self) -> str:
        """The same in English."""
        return sentence(self.fact())


# Names, levels and notes as searches record them; others are told as they are.
_FACTS: dict[str, str] = {
    "device": "knob_device",
    "experts on the processor": "knob_experts",
    "threads": "knob_threads",
    "repack": "knob_repack",
    "our own kernels": "knob_own_kernels",
    "flash attention and KV type": "knob_attention",
    "ubatch": "knob_ubatch",
    "batch": "knob_batch",
    "mmap": "knob_mmap",
    "longest guess": "knob_longest_guess",
    "on": "level_on",
    "off": "level_off",
    "none": "level_none",
    "processor": "level_processor",
    "a turn": "of_turn",
    "an answer that repeats": "of_repeating_answer",
    "no clear gain": "no_clear_gain",
    "too slow": "too_slow",
}


def _fact(recorded: str) -> str | Reason:
    return because(_FACTS[recorded]) if recorded in _FACTS else recorded


def _level(recorded: str) -> tuple[str | Reason, ...]:
    return tuple(map(_fact, recorded.split(", ")))


def _figures(seconds: float, joules: float | None) -> Reason:
    if joules is None:
        return because("took_seconds", seconds=seconds)
    return because("took_joules", joules=joules, seconds=seconds)


class TuneReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search. `turn_s` and `default_turn_s` were measured in the same, longest round.

    Without `default_turn_s` the defaults do not work.
    Tokens per joule are told where energy was the goal: of a turn, with what the computer draws at rest left out.
    `joules_noise` is the standard deviation of one run's joules as a share of them.
    """

    model: str
    prompt_tokens: int
    best: Knobs
    turn_s: float
    default: Knobs
    default_turn_s: float | None
    prefill_tok_s: float
    decode_tok_s: float
    choices: tuple[Choice, ...]
    trials: tuple[Trial, ...]
    cost_s: float
    complete: bool
    measured_at: float
    stand_in: bool = False
    goal: Goal = "speed"
    tokens_per_joule: float | None = None
    default_tokens_per_joule: float | None = None
    joules_noise: float | None = None
