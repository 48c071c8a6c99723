"""Records of benchmarks and of searches for the fastest settings."""

from typing import Final, Literal

import msgspec

from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because
from engine.runner.protocol import LoadSettings


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Median, minimum and maximum of the repeats."""

    median: float
    low: float
    high: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence after a prompt of `length` tokens: speeds in tokens/s, times in seconds.

    `itl_s`: 50th, 90th and 99th percentile of the gaps between tokens. `power_w`: mean during the run, if readable.
    `tokens_per_joule`: generated tokens per joule above the idle power; the joules of the prompts count too.
    """

    length: int
    prefill_tok_s: Spread
    decode_tok_s: Spread
    ttft_s: Spread
    itl_s: tuple[float, ...] = ()
    power_w: float | None = None
    tokens_per_joule: float | None = None


class Concurrency(msgspec.Struct, frozen=True, kw_only=True):
    """Total tokens/s of `parallel` concurrent sequences."""

    parallel: int
    total_tok_s: Spread


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark of one model on this machine.

    `drift` is the decode speed at the end divided by that at the start: below 0.9 the machine slowed down, by heat
    or other work. `stand_in`: random weights of the model's shape. Results with equal `shape_key` and `machine_key`
    have the same tensors, and the same machine, driver and build. `tokens` is the number generated after each
    prompt. `idle_w` is the power before the load; its name on disk and on the wire is `rest_w`.
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
        """Decode tokens/s after the shortest prompt."""
        return min(self.points, key=lambda p: p.length).decode_tok_s.median


# The turn that placements are compared by: a message with some context, and a response of a few paragraphs.
TURN_PROMPT: Final = 1000
TURN_ANSWER: Final = 250


class Speed(msgspec.Struct, frozen=True):
    """Expected prefill and decode speed in tokens/s; `measured`: based on measurements on this machine.

    `answers` usually run at once; together they get `gain` times the tokens/s of one alone.
    """

    prefill_tok_s: float
    decode_tok_s: float
    measured: bool
    answers: float = 1.0
    gain: float = 1.0

    @property
    def total_tok_s(self) -> float:
        """Tokens/s of all answers that usually run at once."""
        return self.decode_tok_s * self.gain

    @property
    def turn_s(self) -> float:
        """Seconds that the place spends on a usual turn, of which as many as usual run at once."""
        return self._turn_s(self.total_tok_s)

    @property
    def alone_s(self) -> float:
        """Seconds of a usual turn while nothing else runs."""
        return self._turn_s(self.decode_tok_s)

    def _turn_s(self, decode_tok_s: float) -> float:
        if self.prefill_tok_s <= 0 or decode_tok_s <= 0:
            return float("inf")
        return TURN_PROMPT / self.prefill_tok_s + TURN_ANSWER / decode_tok_s


class PlaceSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Measured speeds of a place: tokens/s of a short prompt and of the tokens generated after it.

    The forecasts are for the same prompt, by the rule alone. `took_s` includes loading and compiling shaders.
    """

    device: str
    backend: str
    prefill_tok_s: float
    decode_tok_s: float
    forecast_prefill_tok_s: float
    forecast_decode_tok_s: float
    took_s: float


class SpeedAtLength(msgspec.Struct, frozen=True, array_like=True):
    """Tokens/s of reading a prompt of `length` tokens, and of writing after it."""

    length: int
    prefill_tok_s: float
    decode_tok_s: float


class SpeedCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds of one model over the length of its prompt, where it would run now.

    `forecast` is by the rule alone: half of such forecasts are off by less than `usual_error`, nine in ten by less
    than `rare_error`. `expected` is what `measured` and earlier answers make of it, the same without them.
    `measured` are points of this model, or of another of its family moved to this one's size (`of_family`).
    """

    forecast: tuple[SpeedAtLength, ...] = ()
    expected: tuple[SpeedAtLength, ...] = ()
    measured: tuple[SpeedAtLength, ...] = ()
    of_family: bool = False
    usual_error: float = 0.0
    rare_error: float = 0.0


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All places of one model, and where it runs by forecasts (`before`) and by what was measured (`after`)."""

    model: str
    places: tuple[PlaceSpeed, ...]
    before: str
    after: str


class TypePrices(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds of decoding per weight, by type name, with these devices and threads."""

    machine_key: str
    devices: tuple[str, ...]
    threads: int
    ns_per_weight: dict[str, float]
    measured_at: float


# Response tokens of the timed turn: about a paragraph.
ANSWER_TOKENS = 128
# The quantity that a search minimizes: the seconds of a turn, or its joules.
Goal = Literal["speed", "energy"]


class TunableSettings(msgspec.Struct, frozen=True, kw_only=True):
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
        """The settings with these values applied."""
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


def knobs_of(settings: LoadSettings) -> TunableSettings:
    """The tunable values of settings that were chosen without measuring."""
    return TunableSettings(
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


class TrialSize(msgspec.Struct, frozen=True, kw_only=True):
    """Size of one trial: prompt tokens, response tokens, and repeats.

    `copying`: the model continues a repetitive text instead, and only its decode speed counts. `joules`: energy is
    measured too. Trials that differ in this are never compared.
    """

    prompt: int
    answer: int
    repeats: int
    copying: bool = False
    joules: bool = False


class TrialOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trial. `failure` says why the settings do not work; the speeds are 0 then.

    Speeds are in tokens/s; `cost_s` is the wall time of the trial, including the load. `joules` has the energy of
    each run above idle; `tokens_per_joule` counts the tokens generated in all runs. Both are None if energy is not
    measured.
    """

    prefill_tok_s: float = 0.0
    decode_tok_s: float = 0.0
    cost_s: float = 0.0
    failure: str | None = None
    tokens_per_joule: float | None = None
    joules: tuple[float, ...] = ()

    def turn_s(self, prompt: int) -> float:
        """Seconds of a turn: `prompt` prompt tokens and ANSWER_TOKENS response tokens; infinite after a failure."""
        if self.failure is not None or self.prefill_tok_s <= 0 or self.decode_tok_s <= 0:
            return float("inf")
        return prompt / self.prefill_tok_s + ANSWER_TOKENS / self.decode_tok_s

    def turn_j(self) -> float:
        """Joules of a turn above the idle power. Infinite if unknown, and after a failure."""
        if self.failure is not None or not self.tokens_per_joule:
            return float("inf")
        return ANSWER_TOKENS / self.tokens_per_joule


class TuneTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the record: the settings, how they were measured and the result."""

    knobs: TunableSettings
    budget: TrialSize
    outcome: TrialOutcome


class TunedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Why one setting has its value: seconds (`of` what) with it and with the next best value, in short rounds.

    Without seconds the next best value does not work. If energy was the goal there are joules too, and a `note` on
    why a value with fewer joules was not chosen.
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
        """The measurement as a fact for the placement card."""
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
        return sentence(self.fact())


# Names, levels and notes as searches record them; others are shown unchanged.
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
    Tokens per joule are given if energy was the goal: per turn, without the computer's idle power.
    `joules_noise` is the standard deviation of one run's joules as a fraction of them.
    """

    model: str
    prompt_tokens: int
    best: TunableSettings
    turn_s: float
    default: TunableSettings
    default_turn_s: float | None
    prefill_tok_s: float
    decode_tok_s: float
    choices: tuple[TunedSetting, ...]
    trials: tuple[TuneTrial, ...]
    cost_s: float
    complete: bool
    measured_at: float
    stand_in: bool = False
    goal: Goal = "speed"
    tokens_per_joule: float | None = None
    default_tokens_per_joule: float | None = None
    joules_noise: float | None = None
