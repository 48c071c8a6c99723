"""The engine's request and event types; every protocol is translated to and from them."""

from typing import Literal

import msgspec

from engine.core.startup_timing import Phase

FinishReason = Literal["stop", "length", "cancelled", "error"]
# "side": runs only while there are no other requests; its computed prompt is cached.
Priority = Literal["interactive", "batch", "background", "side"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters. Defaults are neutral except temperature, as OpenAI documents it.

    `temperature` 0 means greedy. `top_k` 0, `top_p` 1, `min_p` 0, `typical_p` 1, `top_n_sigma` -1, `repeat_penalty`
    1, `xtc_probability` 0, `dry_multiplier` 0, `mirostat` 0, `dynatemp_range` 0 and `adaptive_target` -1 disable a
    stage. `seed` None uses a random one. `order` lists the stages to run; stages may be omitted (None: the runner's
    default order). Mirostat has its own order.
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

    `kind` is the type of `source`.
    `trigger`: the constraint starts only after this text was generated, if ever (tool calls).
    `preamble`: start and end marker of a reasoning block that may come first, or is already open. The constraint
    starts after it, and the response cannot end inside it.
    With both, a `trigger` inside such blocks does not count, and the response may end anywhere before the
    constraint starts.
    `strict` False: the parts of a JSON schema that cannot be enforced are dropped when the constraint is checked.
    """

    kind: Literal["json_schema", "json_object", "regex", "lark", "gbnf"]
    source: str
    trigger: str | None = None
    preamble: tuple[str, str] | None = None
    preamble_open: bool = False
    strict: bool = True


class ReasoningBudget(msgspec.Struct, frozen=True, kw_only=True):
    """Allows at most `tokens` tokens between `start` and `end`, then writes `close`.

    `is_open`: the block is already open.
    """

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

    `prompt` is text (special tokens in it are parsed if `parse_special`) or token ids.
    `max_tokens` None generates to the end of the context; 0 computes the prompt and samples nothing.
    `logprobs` None: none; 0: the chosen token's; n: also the n most likely.
    `images` replace, in order, the media markers in the prompt.
    `keep_special` renders control tokens as text, as parsers of tool calls and reasoning need; otherwise they are
    generated but not shown.
    `ignore_eos` never samples the model's end tokens; `min_tokens` only delays them. `stop_token_ids` end the
    response too and are not shown.
    `prompt_logprobs`, together with `logprobs`, returns the prompt's tokens as well and uses no cached prompt.
    `speculate` controls speculative decoding: None uses it if measured to pay, True if there is any draft, False
    never. The text stays the same.
    `context_shift` continues a response when the context is full: the older half of the tokens after the prompt's
    beginning is discarded.
    `cache_prompt` False uses no cached prompt and stores none, as measurements need.
    `stream` False sends the whole text at the end; single tokens cause no events.
    `loop_guard` ends a response that repeats itself or turns into noise with `length`; `Done.runaway` gives the
    reason.
    `lora` are (adapter, scale).
    `progress` reports the prefill of a long prompt.
    `deterministic` runs the request in a separate context, in steps whose shape depends only on the request itself.
    Its tokens therefore do not depend on previous or concurrent requests.
    `owner` is the owner of the request: its computed prompt is reused only for the same owner.
    `explicit` are the fields of `sampling` that the client set: only these are sent to another server, which has
    its own defaults.
    `repeats` False lets a request at temperature 0 use every cached token, so its response may depend on the cache:
    for completions while the user types.
    `choice_of` is the same for all choices of one response: a choice that repeats waits for the one before it.
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
    choice_of: str = ""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token's natural-log probability; `top` holds (token id, bytes, logprob) of the most likely alternatives."""

    token_id: int
    piece: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one request.

    `cached_tokens` of the prompt came from the prefix cache; `reasoning_tokens` of the completion are reasoning.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """A request's `number` in its runner, its share `own_s`, and the seconds `all_s` of all steps so far."""

    number: int
    own_s: float
    all_s: float


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of one request in seconds; `decode_s` spans the first to the last generated token.

    `itl_s`: 50, 90 and 99 % of the gaps between two tokens were shorter; empty below two tokens. `joules` is the
    energy used beyond the idle level of the computer; None without a meter.
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
    """The request left the queue; `cached_tokens` of its prompt tokens were cached."""

    prompt_tokens: int
    cached_tokens: int


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Number of prompt tokens processed, including those from the cache.

    `left_s` estimates the seconds until the first token (0: not known yet).
    `busy`: other programs take the CPU, so that it takes longer than usual.
    """

    processed: int
    prompt_tokens: int
    cached_tokens: int
    left_s: float = 0.0
    busy: bool = False


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """Newly generated text (whole UTF-8 characters, without stop strings) and its tokens.

    `prompt_logprobs` come once, with the first of these events. The very first token has NaN: it has no
    predecessor.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Runaway(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why the loop guard ended a response.

    Either a `passage` was repeated `times` times, or the tokens had a mean surprise of `nats`.
    """

    kind: Literal["loop", "noise"]
    passage: str = ""
    times: int = 0
    nats: float = 0.0


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The end of a request. `stop` is the stop string that ended it, `runaway` the loop guard's finding, if any.

    `unfinished` says why its constraint could not be completed; the response then ends with `length`. `notes` are
    facts about the model for the reader.
    """

    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    stop: str | None = None
    runaway: Runaway | None = None
    unfinished: str | None = None
    notes: tuple[str, ...] = ()


Event = Started | PromptProgress | Delta | Done


class DeviceCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Difference between a device's log probabilities and the CPU's, over `rows` rows of a fixed set of prompts.

    KL divergences are in nats. `top_changed_frac` counts rows whose most likely token differs although the CPU was
    sure of its own. `logprob_difference` is the largest change among the most likely tokens. `omitted` names the
    batches like the server's that the time of a load was too short for.
    """

    rows: int
    kld_mean: float
    kld_max: float
    top_changed_frac: float
    logprob_difference: float
    omitted: str = ""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the model that a runner loaded; `n_ctx` is the context that is really available.

    `max_ctx` is the size to which the context may grow if memory allows (0: it cannot grow). Up to `reserved_cells`
    its cache grows without a copy.
    No token spells more than `longest_token_bytes` of a prompt (0: there is no such limit).
    `device_check` compares its device with the CPU at this load; None if that was not done.
    `phases` are those of its process, from its start to the end of this load.
    `forwards` names the kind of server that renders and parses chats itself; empty: Tessera does that.
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
    reserved_cells: int = 0
    longest_token_bytes: int = 0
    device_check: DeviceCheck | None = None
    phases: tuple[Phase, ...] = ()
    forwards: str = ""

    @property
    def largest_ctx(self) -> int:
        """The longest prompt in tokens that is not refused for its length alone."""
        return max(self.n_ctx, self.max_ctx)
