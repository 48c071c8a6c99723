"""Checks a request before it reaches llama.cpp, and reserves its KV cells."""

from typing import Final

from engine.core.types import GenerationRequest
from engine.runner.generation.grammar_mask import TokenConstraint
from engine.runner.generation.scheduler import answer_limit, context_exceeded, problem
from engine.runner.generation.text import TextStream
from engine.runner.llama.batch.adapters import Adapters
from engine.runner.llama.batch.sampler import ChainSampler
from engine.runner.llama.native.model import LoadedModel
from engine.runner.llama.sequence import LlamaSequence
from engine.runner.llama.vision.vision import Media
from engine.runner.load_limits import is_resizable
from engine.runner.protocol import ContextWanted, Fault

# Cells reserved for a response at admission: the worst case would leave most of the cache unused.
# Source: reference measurements of typical chat responses; a longer response preempts when the cache is full.
ANSWER_RESERVE: Final = 512


def cells_needed(sequence: LlamaSequence) -> int:
    """Return the cells for a request's tokens and a typical response."""
    return min(sequence.limit, len(sequence.tokens) + ANSWER_RESERVE)


def cells_promised(running: list[LlamaSequence]) -> int:
    """Return the cells that are reserved for running requests and not used yet."""
    return sum(cells_needed(s) - len(s.tokens) + s.n_missing for s in running)


def more_cells(loaded: LoadedModel, request_id: int) -> ContextWanted | None:
    """Return the message for a larger cache: that of the next larger context, or of more contexts of the longest.

    None: it has cells for every parallel request, or cannot be resized.
    """
    n_ctx = loaded.n_ctx
    if n_ctx < loaded.max_ctx:
        return ContextWanted(id=request_id, tokens=n_ctx + 1, wants_cells=True)
    if is_resizable(loaded.settings) and loaded.kv_cells < loaded.settings.n_parallel * n_ctx:
        return ContextWanted(id=request_id, tokens=n_ctx, cells=loaded.kv_cells + 1, wants_cells=True)
    return None


def new_sequence(
    loaded: LoadedModel,
    request_id: int,
    request: GenerationRequest,
    tokens: list[int],
    constraint: TokenConstraint | None,
    media: Media | None,
) -> LlamaSequence:
    """Return the sequence of an accepted request, ready for the queue."""
    text = tokens if media is None else [t for t in tokens if t >= 0]
    trained = int(loaded.api.llama_model_n_ctx_train(loaded.model))
    sequence = LlamaSequence(
        request_id,
        request,
        list(tokens),
        len(tokens),
        answer_limit(request, len(tokens), loaded.n_ctx),
        ChainSampler(loaded.api, loaded.vocab, request.sampling, trained, text),
        TextStream(request.stop),
        constraint,
        media=media,
        most=answer_limit(request, len(tokens), loaded.max_ctx),
    )
    sequence.drafter.observe(text)
    return sequence


def refusal(
    request_id: int, request: GenerationRequest, tokens: list[int], n_ctx: int, n_vocab: int, adapters: Adapters
) -> Fault | None:
    """Return why a tokenized request cannot run in a context of `n_ctx` tokens; None if it can."""
    exceeded = context_exceeded(request_id, len(tokens), n_ctx)
    if exceeded is not None:
        return exceeded
    complaint = problem(request, tokens, n_vocab) or _missing(request, adapters) or _unending(request)
    if complaint is None:
        return None
    param, text = complaint
    return Fault(id=request_id, code="invalid_request", message=text, param=param)


def _missing(request: GenerationRequest, adapters: Adapters) -> tuple[str, str] | None:
    missing = adapters.unknown(request.lora)
    if missing is not None:
        loaded = ", ".join(adapters.names) or "none"
        return "lora", f"The adapter {missing!r} was not loaded with this model (loaded: {loaded})."
    return None


def _unending(request: GenerationRequest) -> tuple[str, str] | None:
    if request.context_shift and request.max_tokens is None:
        return "context_shift", "context_shift needs max_tokens: nothing else would end the answer."
    if request.context_shift and request.images:
        return "context_shift", "context_shift works with text only: an image cannot be cut."
    return None
