"""The parts of OpenAI's protocol that Tessera's clients read: the model list and chunks of streamed responses."""

from typing import Final, Literal

import msgspec

from engine.api.collections import Citations
from engine.api.models import EffectiveValue
from engine.api.receipts import Receipt
from engine.message_catalog.reasons import Reason

# Origin of models that another server runs. Tessera never selects such a model automatically.
REMOTE: Final = "remote"


class ModelNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers from a model's header; 0 if unknown."""

    n_params: int = 0


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model of GET /v1/models, with its effective context length (0 if unknown before the model is loaded).

    `default` marks the model for requests that name no model. `demo` marks a toy model. `origin` is the origin
    stored in the library. `sampling` has the values for chats that set none. `alias_of` is the model that this id
    is another name for.
    """

    id: str
    name: str = ""
    context_length: int = 0
    state: Literal["loaded", "not-loaded"] = "not-loaded"
    capabilities: tuple[str, ...] = ()
    origin: str = ""
    demo: bool = False
    default: bool = False
    sampling: dict[str, EffectiveValue] = {}
    alias_of: str = ""
    meta: ModelNumbers = ModelNumbers()


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/models: every model the server can load."""

    data: tuple[ModelRow, ...]


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The embedding vector of input number `index`."""

    index: int
    embedding: list[float]


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings with `encoding_format` float."""

    data: tuple[Embedding, ...]


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tokenize; Tessera's clients read only the count."""

    count: int


class InfillEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of POST /infill; the last one has `stop` set. Counts are None until they are known."""

    content: str = ""
    stop: bool = False
    tokens_evaluated: int | None = None
    tokens_cached: int | None = None


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Delta of a function call: its name, or the next part of its arguments as JSON text."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Delta of tool call number `index`."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta = FunctionDelta()


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """Delta of a response."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of the response; Tessera's clients request one."""

    index: int = 0
    delta: Delta = Delta()
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Number of prompt tokens that came from the cache."""

    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptDetails = PromptDetails()


class Timings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Times of a request in seconds, its speed in tokens/s, its draft tokens and its energy.

    `joules` is the energy above idle. It is omitted if no meter is available.
    """

    queue_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    decode_s: float = 0.0
    tok_s: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0
    joules: float | None = None
    tokens_per_joule: float | None = None


class Runaway(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The loop guard's reason for ending a response.

    A "loop" repeated `passage` `times` times. In "noise" the tokens had a surprise of `nats`.
    """

    kind: Literal["loop", "noise"]
    choice: int = 0
    passage: str = ""
    times: int = 0
    nats: float = 0.0


class TesseraFields(msgspec.Struct, frozen=True, kw_only=True):
    """Tessera's additions to OpenAI's fields.

    `ran_on` names the other server that answered and the rule for it. `ran_on_detail` is the same as structured
    data.
    """

    runaway: tuple[Runaway, ...] = ()
    ran_on: str = ""
    ran_on_detail: Reason | None = None
    collection: Citations | None = None
    receipt: Receipt | None = None


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a model load (0 to 1), and the number of requests that wait before this one.

    `compiling` is True while the device's compiler processes the model. That is slow the first time only.
    """

    fraction: float = 0.0
    waiting: int = 0
    compiling: bool = False


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Number of prompt tokens processed so far. `left_s` estimates the seconds until the first token (0: unknown).

    `busy`: other programs use the server's CPU.
    """

    processed: int = 0
    total: int = 0
    left_s: float = 0.0
    busy: bool = False


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat completion. The last one has no choices, but usage and timings."""

    choices: tuple[ChunkChoice, ...] = ()
    usage: Usage | None = None
    timings: Timings | None = None
    tessera: TesseraFields | None = None
    load_progress: LoadProgress | None = None
    prompt_progress: PromptProgress | None = None
