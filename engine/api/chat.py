"""What clients of our own read of OpenAI's protocol: the list of models, and the chunks of a streamed answer."""

from typing import Final, Literal

import msgspec

from engine.api.collections import Grounds
from engine.api.models import Decided
from engine.api.receipts import Receipt
from engine.message_catalog.reasons import Reason

# The origin of models that another server runs: nothing chooses one by itself.
REMOTE: Final = "remote"


class ModelNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers from a model's header; 0: not known."""

    n_params: int = 0


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model of GET /v1/models, with the context it really gets here (0: not known before it is loaded).

    `default` answers requests that name no model; a `demo` is a toy; `origin` is that of the library.
    `sampling` is what a chat that names none is sampled with. `alias_of`: this id is another name of that model.
    """

    id: str
    name: str = ""
    context_length: int = 0
    state: Literal["loaded", "not-loaded"] = "not-loaded"
    capabilities: tuple[str, ...] = ()
    origin: str = ""
    demo: bool = False
    default: bool = False
    sampling: dict[str, Decided] = {}
    alias_of: str = ""
    meta: ModelNumbers = ModelNumbers()


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/models: every model the server can load."""

    data: tuple[ModelRow, ...]


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of the text number `index`."""

    index: int
    embedding: list[float]


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings with `encoding_format` float."""

    data: tuple[Embedding, ...]


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tokenize, of which clients of ours need the count."""

    count: int


class InfillEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of POST /infill; the last one has `stop`. Counts are None until they are known."""

    content: str = ""
    stop: bool = False
    tokens_evaluated: int | None = None
    tokens_cached: int | None = None


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a call: its name, or more of the JSON text of its arguments."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the call number `index`."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta = FunctionDelta()


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new in an answer."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the answers asked for; ours ask for one."""

    index: int = 0
    delta: Delta = Delta()
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the prompt came from the cache."""

    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptDetails = PromptDetails()


class Timings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the time of a request went, in seconds, its speed in tokens/s, its guesses, and its energy.

    `joules` is what was drawn for it beyond the computer's rest; left out where no meter tells.
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
    """Why the loop guard ended an answer: it said `passage` so many `times`, or its tokens surprised by `nats`."""

    kind: Literal["loop", "noise"]
    choice: int = 0
    passage: str = ""
    times: int = 0
    nats: float = 0.0


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of our own beside OpenAI's. `ran_on` says which other server answered, and by which rule.

    `ran_on_detail` has it as facts.
    """

    runaway: tuple[Runaway, ...] = ()
    ran_on: str = ""
    ran_on_detail: Reason | None = None
    collection: Grounds | None = None
    receipt: Receipt | None = None


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the start of the model is (0 to 1), and how many requests wait before this one.

    `compiling`: its device's compiler works on it, which takes long the first time only.
    """

    fraction: float = 0.0
    waiting: int = 0
    compiling: bool = False


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens of the prompt were read."""

    processed: int = 0
    total: int = 0


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat completion. The last one has no choices but the numbers of the request."""

    choices: tuple[ChunkChoice, ...] = ()
    usage: Usage | None = None
    timings: Timings | None = None
    tessera: Extras | None = None
    load_progress: LoadProgress | None = None
    prompt_progress: PromptProgress | None = None
