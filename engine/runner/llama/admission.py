"""What a request must be before llama.cpp sees any of it."""

from engine.runner.protocol import Fault
from engine.types import GenerationRequest


def refusal(
    request_id: int, request: GenerationRequest, tokens: list[int], n_ctx: int, n_vocab: int
) -> Fault | None:
    """Why a tokenized request cannot run in a context of `n_ctx` tokens; None when it can."""
    if not tokens:
        return Fault(id=request_id, code="invalid_request", message="The prompt is empty.", param="prompt")
    if len(tokens) >= n_ctx:
        counts: dict[str, int | float | str | None] = {"prompt_tokens": len(tokens), "context_tokens": n_ctx}
        return Fault(id=request_id, code="context_length_exceeded", message="", facts=counts)
    if min(tokens) < 0 or max(tokens) >= n_vocab:
        text = f"Token ids must be between 0 and {n_vocab - 1}."
        return Fault(id=request_id, code="invalid_request", message=text, param="prompt")
    unknown = [t for t in request.sampling.logit_bias if not 0 <= t < n_vocab]
    if unknown:
        text = f"Token id {unknown[0]} is not in this model's vocabulary of {n_vocab}."
        return Fault(id=request_id, code="invalid_request", message=text, param="logit_bias")
    if request.images:
        text = "This model was loaded without the part that sees pictures."
        return Fault(id=request_id, code="invalid_request", message=text, param="messages")
    return None
