"""The engine's own request and event model; every protocol is translated to and from these."""

from typing import Literal

import msgspec

from engine.core.startup_timing import Phase

FinishReason = Literal["stop", "length", "cancelled", "error"]
# "side": only while nobody else is answered; what it read is kept.
Priority = Literal["interactive", "batch", "background", "side"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is drawn. Defaults are neutral except temperature, as OpenAI documents it.

    `temperature` 0 means greedy. `top_k` 0, `top_p` 1, `min_p` 0, `typical_p` 1, `top_n_sigma` -1,
    `repeat_penalty` 1, `xtc_probability` 0, `dry_multiplier` 0, `mirostat` 0, `dynatemp_range` 0 and
    `adaptive_target` -1 switch a stage off. `seed` None draws one. `order` lists the stages to run, one may be left
    out (None: the runner's default order); mirostat has its own.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    order: tuple[str, ...] | None = None


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """Structured output, compiled by llguidance in the runner.

    `kind` says what `source` holds. With `trigger` set the constraint starts only after that text was
    generated, if ever (tool calls). `preamble` holds the two marks of a reasoning block that may come first,
    or is already open; the constraint starts after it, and the answer cannot end inside it. With both, a
    `trigger` inside such blocks does not count, and the answer may end anywhere before the constraint starts.
    Without `strict` what of a JSON schema cannot be enforced is dropped where the constraint is checked.
    """

    kind: Literal["json_schema", "json_object", "regex", "lark", "gbnf"]
    source: str
    trigger: str | None = None
    preamble: tuple[str, str] | None = None
    preamble_open: bool = False
    strict: bool = True


class ReasoningBudget(msgspec.Struct, frozen=True, kw_only=True):
    """At most `tokens` tokens between `start` and `end`; then `close` is written. `is_open`: begun before."""

    tokens: int
    start: str
    end: str
    close: str
    is_open: bool = False


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """One encoded image (PNG, JPEG, WebP bytes), decoded only in the runner."""

    data: bytes


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt for one completion.

    `prompt` is text (special tokens in it are parsed when `parse_special`) or token ids. `max_tokens` None runs
    to the end of the context. `logprobs` None: none; 0: the chosen token's; n: also the n best. `images`
    replace, in order, the media markers in the prompt. `keep_special` renders control tokens as text (parsers
    of tool calls and reasoning need them); otherwise they are generated but not shown. `speculate` says whether
    the runner drafts tokens: None where that was measured to pay, True wherever there is a draft, False never;
    the text stays the same. Without `cache_prompt` nothing computed before is used and nothing is left behind:
    what a measurement needs. Without `stream` the text comes whole at the end, and no token wakes anybody. The
    model's own end tokens are never sampled with `ignore_eos`, nor before `min_tokens`; `stop_token_ids` end
    the answer too and are not shown. `max_tokens` 0 computes the prompt and samples nothing. With
    `prompt_logprobs` and `logprobs` the prompt's tokens are returned as well, and nothing computed before is
    used. With `context_shift` an answer continues when the context is full: the older half of what follows the
    prompt's beginning is forgotten. `lora` are (adapter, scale). With `loop_guard` an answer that goes round in
    circles or turns into noise ends with `length`, and `Done.runaway` says why. With `progress` the prefill of
    a long prompt is reported. A `deterministic` request is computed in a context of its own, in steps whose
    shape depends on nothing but itself, so that its tokens do not depend on what ran before or beside it.
    `owner` is whose request it is: what was computed of a prompt is used again for the same owner only.
    `explicit` are the fields of `sampling` that the client named: only these are sent to another server, which
    has defaults of its own. Without `repeats` a request at temperature 0 takes every cached token, and its answer
    may depend on what is cached: completions while somebody types.
    """

    prompt: str | list[int]
    add_special: bool = True
    parse_special: bool = True
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: SamplingParams = SamplingParams()
    logprobs: int | None = None
    constraint: Constraint | None = None
    priority: Priority = "interactive"
    images: tuple[Image, ...] = ()
    keep_special: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    prompt_logprobs: bool = False
    reasoning: ReasoningBudget | None = None
    speculate: bool | None = None
    context_shift: bool = False
    cache_prompt: bool = True
    stream: bool = True
    loop_guard: bool = False
    lora: tuple[tuple[str, float], ...] = ()
    progress: bool = False
    deterministic: bool = False
    owner: str = ""
    explicit: tuple[str, ...] = ()
    repeats: bool = True


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token's natural-log probability; `top` holds (token id, bytes, logprob) of the best alternatives."""

    token_id: int
    piece: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request; `cached_tokens` of the prompt were taken from the prefix cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """What a request took of its runner: its `number` there, and its share of the seconds of all steps so far."""

    number: int
    own_s: float
    all_s: float


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds one request spent; `decode_s` spans the first to the last generated token.

    `itl_s`: half, 90 % and 99 % of the gaps between two tokens were shorter; empty below two tokens. `joules` were
    drawn for it beyond what the computer draws at rest; None where no meter tells.
    """

    queue_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    decode_s: float = 0.0
    draft_tokens: int = 0
    draft_accepted: int = 0
    itl_s: tuple[float, ...] = ()
    step_time: StepTime | None = None
    joules: float | None = None


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The request left the queue; its prompt has this many tokens, of which some were cached."""

    prompt_tokens: int
    cached_tokens: int


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """How many of the prompt's tokens are read, those from the cache among them."""

    processed: int
    prompt_tokens: int
    cached_tokens: int


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """Newly generated text (whole UTF-8 characters, stop strings already withheld) and its tokens.

    `prompt_logprobs` come once, with the first of these; the first token of all has NaN: nothing stood before it.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Runaway(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an answer was cut: a `passage` that came so many `times`, or tokens of `nats` surprise on average."""

    kind: Literal["loop", "noise"]
    passage: str = ""
    times: int = 0
    nats: float = 0.0


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The end of a request. `stop` is the stop string that ended it, `runaway` what its guard found, if so.

    `unfinished` says why its constraint could not be followed to the end; the answer ends with `length` then.
    """

    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    stop: str | None = None
    runaway: Runaway | None = None
    unfinished: str | None = None


Event = Started | PromptProgress | Delta | Done


class DeviceCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How far a device's log probabilities are from the CPU's, over `rows` rows of a fixed set of prompts.

    KL divergences in nats. `top_changed_frac` counts rows whose likeliest token differs although the CPU was sure
    of its own. `logprob_difference` is the largest change among the likeliest tokens.
    """

    rows: int
    kld_mean: float
    kld_max: float
    top_changed_frac: float
    logprob_difference: float


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner knows about the model it loaded; `n_ctx` is the context really available.

    `max_ctx` is how far it may grow where memory has room (0: it keeps its size).
    No token spells more than `longest_token_bytes` of a prompt (0: there is no such bound).
    `device_check` is how its device compared with the CPU at this load; None where it was not compared.
    `phases` are those of its process, from its start to the end of this load.
    `forwards` names the kind of server that renders and parses chats itself; empty: that is done here.
    """

    architecture: str
    description: str
    n_params: int
    size_bytes: int
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_parallel: int
    n_embd: int
    chat_template: str | None
    bos: str
    eos: str
    add_bos: bool
    fim: dict[str, str]
    metadata: dict[str, str]
    capabilities: tuple[str, ...] = ("completion",)
    backend: str = "cpu"
    memory_bytes: dict[str, int] = {}
    max_ctx: int = 0
    longest_token_bytes: int = 0
    device_check: DeviceCheck | None = None
    phases: tuple[Phase, ...] = ()
    forwards: str = ""

    @property
    def largest_ctx(self) -> int:
        """The longest prompt that is not refused for its length alone."""
        return max(self.n_ctx, self.max_ctx)
