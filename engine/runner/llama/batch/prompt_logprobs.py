"""Log probabilities of a prompt's own tokens: every row of the prompt is an output, so few are read in one step."""

import math
from collections.abc import Sequence as Pieces
from typing import Any

from engine.core.types import TokenLogprob
from engine.runner.generation.sampler import token_logprob
from engine.runner.llama.native.batch import Batch
from engine.runner.llama.sequence import LlamaSequence
from engine.runner.load_limits import MAX_DRAFT


def put(batch: Batch, sequence: LlamaSequence, start: int, take: int, others: int) -> bool:
    """Add up to `take` tokens of a prompt that is to be scored, all of them outputs; False for any other prompt.

    `others` are the sequences of this step that may want one row each.
    """
    request, cache = sequence.request, sequence.cache
    if not request.prompt_logprobs or request.logprobs is None or sequence.n_generated or cache is None:
        return False
    take = min(take, 1 + MAX_DRAFT, batch.max_outputs - batch.outputs - others)
    if take > 0:
        sequence.row, sequence.scored = batch.outputs, take
        batch.add_embedded(sequence.tokens[start : start + take], sequence.position(start), cache.seq_id)
        del sequence.prompt_logprobs[start + 1 :]  # what a step that failed has left
    return True


def note(sequence: LlamaSequence, rows: Any, pieces: Pieces[bytes]) -> bool:
    """Keep what this step's rows say of the prompt; True once all is computed: the last row can be sampled from."""
    count, sequence.scored = sequence.scored, 0
    top = sequence.request.logprobs or 0
    first, logprobs = sequence.row, sequence.prompt_logprobs
    if not logprobs:
        logprobs.append(TokenLogprob(sequence.tokens[0], pieces[sequence.tokens[0]], math.nan))
    for row in range(first, first + count):
        if len(logprobs) < sequence.n_prompt:
            logprobs.append(token_logprob(rows[row], sequence.tokens[len(logprobs)], top, pieces))
    sequence.row = first + count - 1 if sequence.n_missing == 0 else -1
    return sequence.row >= 0
