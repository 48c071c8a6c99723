"""What a request must be before llama.cpp sees any of it, its place in the queue, and the cells it is promised."""

from collections import deque
from typing import Final

from engine.runner.llama.batch.adapters import Adapters
from engine.runner.llama.batch.constrain import TokenConstraint
from engine.runner.llama.batch.sampler import Sampler
from engine.runner.llama.batch.sequence import Sequence
from engine.runner.llama.batch.text import TextStream
from engine.runner.llama.native.model import LoadedModel
from engine.runner.llama.vision.vision import Media
from engine.runner.protocol import Fault
from engine.types import GenerationRequest

# Cells reserved for an answer at admission: the worst case would leave most of the cache unused.
# Source: reference measurements of typical chat answers; a longer answer preempts when the cache is full.
ANSWER_RESERVE: Final = 512


def cells_needed(sequence: Sequence) -> int:
    """Cells for a request's tokens and a usual answer."""
    return min(sequence.limit, len(sequence.tokens) + ANSWER_RESERVE)


def cells_promised(running: list[Sequence]) -> int:
    """Cells that running requests were promised and have not taken yet."""
    return sum(cells_needed(s) - len(s.tokens) + s.n_missing for s in running)


def new_sequence(
    loaded: LoadedModel,
    request_id: int,
    request: GenerationRequest,
    tokens: list[int],
    constraint: TokenConstraint | None,
    media: Media | None,
) -> Sequence:
    """A request that was not refused, ready to wait for its turn."""
    room = loaded.n_ctx - len(tokens) if not request.context_shift else request.max_tokens or 0
    wanted = room if request.max_tokens is None else min(request.max_tokens, room)
    text = tokens if media is None else [t for t in tokens if t >= 0]
    trained = int(loaded.api.llama_model_n_ctx_train(loaded.model))
    sequence = Sequence(
        request_id,
        request,
        list(tokens),
        len(tokens),
        len(tokens) + wanted,
        Sampler(loaded.api, loaded.vocab, request.sampling, trained, text),
        TextStream(request.stop),
        constraint,
        media,
    )
    sequence.drafter.observe(text)
    return sequence


def enqueue(waiting: deque[Sequence], sequence: Sequence) -> None:
    """Behind those that came before; people wait before programs do."""
    if sequence.request.priority == "interactive":
        behind = next((i for i, s in enumerate(waiting) if s.request.priority != "interactive"), None)
        waiting.insert(len(waiting) if behind is None else behind, sequence)
    else:
        waiting.append(sequence)


def held(sequence: Sequence, running: list[Sequence]) -> bool:
    """Side work, which waits for as long as anybody else is answered."""
    return sequence.request.priority == "side" and any(s.request.priority != "side" for s in running)


def giving_way(running: list[Sequence], waiting: deque[Sequence]) -> list[Sequence]:
    """Side work under way that has to stop now: somebody else came."""
    side = [s for s in running if s.request.priority == "side"]
    return side if side and any(s.request.priority != "side" for s in (*running, *waiting)) else []


def enqueue_again(waiting: deque[Sequence], sequence: Sequence) -> None:
    """What was running and lost its place goes first; side work goes behind everybody."""
    if sequence.request.priority == "side":
        waiting.append(sequence)
    else:
        waiting.appendleft(sequence)


def refusal(
    request_id: int, request: GenerationRequest, tokens: list[int], n_ctx: int, n_vocab: int, adapters: Adapters
) -> Fault | None:
    """Why a tokenized request cannot run in a context of `n_ctx` tokens; None when it can.

    Ids below 0 stand for pictures; only a prompt that the runner itself tokenized has them.
    """
    if len(tokens) >= n_ctx:
        counts: dict[str, int | float | str | None] = {"prompt_tokens": len(tokens), "context_tokens": n_ctx}
        return Fault(id=request_id, code="context_length_exceeded", message="", facts=counts)
    problem = _problem(request, tokens, n_vocab, adapters) or _unending(request)
    if problem is None:
        return None
    param, text = problem
    return Fault(id=request_id, code="invalid_request", message=text, param=param)


def _problem(
    request: GenerationRequest, tokens: list[int], n_vocab: int, adapters: Adapters
) -> tuple[str, str] | None:
    """The field that is wrong, and why."""
    if not tokens:
        return "prompt", "The prompt is empty."
    if (isinstance(request.prompt, list) and min(tokens) < 0) or max(tokens) >= n_vocab:
        return "prompt", f"Token ids must be between 0 and {n_vocab - 1}."
    unknown = [t for t in request.sampling.logit_bias if not 0 <= t < n_vocab]
    if unknown:
        return "logit_bias", f"Token id {unknown[0]} is not in this model's vocabulary of {n_vocab}."
    unknown = [t for t in request.stop_token_ids if not 0 <= t < n_vocab]
    if unknown:
        return "stop_token_ids", f"Token id {unknown[0]} is not in this model's vocabulary of {n_vocab}."
    missing = adapters.unknown(request.lora)
    if missing is not None:
        loaded = ", ".join(adapters.names) or "none"
        return "lora", f"The adapter {missing!r} was not loaded with this model (loaded: {loaded})."
    return None


def _unending(request: GenerationRequest) -> tuple[str, str] | None:
    if request.context_shift and request.max_tokens is None:
        return "context_shift", "context_shift needs max_tokens: nothing else would end the answer."
    if request.context_shift and request.images:
        return "context_shift", "context_shift is possible with text only: a picture cannot be cut."
    return None
