"""Samples with llama.cpp's own sampler chain, so that the same settings have the same meaning.

If the settings allow it without changing the result, the chain gets only the tokens that can still be sampled.
"""

import ctypes
import math
import random
from collections.abc import Sequence as Pieces
from functools import cache
from typing import Any, Final

import numpy as np

from engine.core.types import SamplingParams, TokenLogprob
from engine.runner.generation.sampler import NotFinite, Sampler, token_logprob
from engine.runner.llama.native import chain
from engine.runner.llama.native.batch import Batch
from engine.runner.llama.sequence import LlamaSequence
from engine.runner.load_limits import MAX_DRAFT

_CANDIDATE: Final = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


# Blocks per token to keep: more blocks leave fewer tokens, but take longer to sort.
BLOCKS: Final = 8
# Values per block of sums over the vocabulary.
BLOCK: Final = 64


class Candidates:
    """A reusable array of tokens for a chain. `reference` is what llama.cpp gets."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._array = api.llama_token_data_array()
        self.reference = ctypes.byref(self._array)
        self._reserve(BLOCKS * BLOCK)

    def put(self, ids: Any, logits: Any) -> Any:
        """Fill the array with tokens and their logits, both (n,); return it as llama.cpp's struct."""
        count = len(ids)
        if count > len(self._ids):
            self._reserve(count)
        self._ids[:count] = ids
        self._logits[:count] = logits
        self._weights[:count] = 0
        array = self._array
        array.data = self._pointer
        array.size = count
        array.selected = -1
        array.sorted = False
        return array

    def _reserve(self, count: int) -> None:
        values = np.empty(count, _CANDIDATE)
        self._ids, self._logits, self._weights = values["id"], values["logit"], values["p"]
        self._pointer = ctypes.cast(values.ctypes.data, ctypes.POINTER(self._api.llama_token_data))


@cache
def shared_candidates(api: Any) -> Candidates:
    """Return the array of all samplers, which take turns in the thread of the steps."""
    return Candidates(api)


class ChainSampler(Sampler):
    """The sampling state of one sequence, with the native chain for its parameters."""

    def __init__(self, api: Any, vocab: Any, params: SamplingParams, n_ctx_train: int, prompt: list[int]) -> None:
        super().__init__(params, prompt)
        self._api = api
        needs_chain = not self.greedy or params.dry_multiplier > 0
        self._before: Any = None
        self._chain: Any = None
        if needs_chain:
            self._before, self._chain = chain.build(api, vocab, params, n_ctx_train, self.seed)
        self._chains = [c for c in (self._before, self._chain) if c is not None]
        self._accepts = bool(self._chains) and (params.dry_multiplier > 0 or params.adaptive_target >= 0)
        if params.dry_multiplier > 0:
            for token in prompt:
                self._accept(token)
        # If stages come before the penalties, the penalties apply to the output of those stages.
        self._penalizes = self._penalizes and self._before is None
        in_default_order = params.order is None
        self._cut_min_p = in_default_order and params.min_p > 0 and params.top_p >= 1 and params.typical_p >= 1
        self._cut_top_p = (
            in_default_order
            and 0 < params.top_p < 1
            and params.top_k <= 0
            and params.typical_p >= 1
            and params.top_n_sigma <= 0
        )
        # llama.cpp's first stage would keep these of all tokens; only DRY and top-n-sigma come before it.
        self._cut_top_k = in_default_order and params.top_k > 0 and params.dry_multiplier <= 0
        self._cut_top_k = self._cut_top_k and params.top_n_sigma <= 0
        self._plain = not (self._cut_min_p or self._cut_top_p or self._cut_top_k)
        self._full_vocab: FullVocabSampler | None = None
        if (
            self._plain
            and self._chain is not None
            and _temperature_alone(params, self.seed)
            and same_generator(api)
        ):
            self._full_vocab = FullVocabSampler(self.seed, params.temperature)

    def accept(self, token: int) -> None:
        """Record a token that is now part of the sequence."""
        super().accept(token)
        if self._accepts:
            self._accept(token)

    def _accept(self, token: int) -> None:
        for stages in self._chains:
            self._api.llama_sampler_accept(stages, token)

    def sample(self, row: Any) -> int:
        """Return the next token from an adjusted row. Raises: NotFinite."""
        if self._plain or not self._cut_top_k or self._chain is None:
            return super().sample(row)
        ids, top = _highest(row, self._params.top_k)
        if not math.isfinite(top):
            raise NotFinite(f"the highest logit is {top}")
        return self._run_chain(ids, row[ids])

    def _choose(self, row: Any, best: int) -> int:
        if self._chain is None:
            return best
        if self._full_vocab is not None:
            token = self._full_vocab.sample(row, best)
            if token is not None:
                return token
            skip(self._api, self._chain, self._full_vocab.behind)
            self._full_vocab.behind = 0
        if self._plain:
            return self._run_chain(np.arange(len(row), dtype=np.int32), row)
        ids: Any
        top = float(row[best])
        if self._cut_min_p:
            ids = (row >= top + math.log(self._params.min_p)).nonzero()[0]
        else:
            ids = _nucleus(row, top, self._params.top_p)
        return self._run_chain(ids, row[ids])

    def _run_chain(self, ids: Any, logits: Any) -> int:
        candidates = shared_candidates(self._api)
        array = candidates.put(ids, logits)
        apply = self._api.llama_sampler_apply
        if self._before is not None:
            apply(self._before, candidates.reference)
            self._penalize_candidates(array, len(logits))
        apply(self._chain, candidates.reference)
        selected = array.selected
        if not 0 <= selected < array.size:
            raise NotFinite("no token could be sampled")
        return int(array.data[selected].id)

    def _penalize_candidates(self, array: Any, n_vocab: int) -> None:
        """Apply penalties to the output of earlier stages."""
        candidates = np.ctypeslib.as_array(
            ctypes.cast(array.data, ctypes.POINTER(ctypes.c_uint8)), (int(array.size) * _CANDIDATE.itemsize,)
        ).view(_CANDIDATE)
        row = np.full(n_vocab, -np.inf, np.float32)
        row[candidates["id"]] = candidates["logit"]
        self._penalize(row)
        candidates["logit"] = row[candidates["id"]]
        array.sorted = False

    def close(self) -> None:
        for stages in self._chains:
            self._api.llama_sampler_free(stages)
        self._chains = []
        self._before = self._chain = None


def _temperature_alone(p: SamplingParams, seed: int) -> bool:
    """Whether the chain consists only of temperature and sampling, and no tokens are cut in advance."""
    return (
        p.order is None
        and 0 <= seed < ANY_SEED
        and p.temperature > 0
        and p.dynatemp_range <= 0
        and p.mirostat == 0
        and p.adaptive_target < 0
        and p.dry_multiplier <= 0
        and p.top_n_sigma <= 0
        and p.typical_p >= 1
        and p.xtc_probability <= 0
        and p.top_k <= 0
        and p.top_p >= 1
        and p.min_p <= 0
    )


def _highest(row: Any, k: int) -> tuple[Any, float]:
    """Return ids of a superset of the `k` highest, and the highest logit, which is NaN if any is.

    These are all that are not below the k-th highest maximum of the row's blocks. A block is a column of a table of
    the row: their maxima take a quarter of the time of maxima of rows.
    """
    size = len(row)
    count = _num_blocks(size, k)
    if 2 * count > size:
        return np.arange(size), float(row.max())
    whole = size // count * count
    blocks = np.maximum.reduce(row[:whole].reshape(-1, count), axis=0)
    blocks.partition((count - k, count - 1))
    top = float(blocks[-1] if whole == size else np.maximum(blocks[-1], row[whole:].max()))
    return (row >= blocks[count - k]).nonzero()[0], top


@cache
def _num_blocks(size: int, k: int) -> int:
    """Return about BLOCKS * k, so that blocks have no rest if possible."""
    least = BLOCKS * k
    return next((n for n in range(least, min(4 * least, size // 2) + 1) if size % n == 0), least)


def _nucleus(row: Any, top: float, p: float) -> Any:
    """Return ids of a superset of the top-p nucleus: all above the first threshold with a mass of p."""
    weights = np.exp(row - top)
    target = p * float(weights.sum())
    for depth in (3.0, 6.0, 10.0, 15.0):
        ids = np.flatnonzero(row >= top - depth)
        if float(weights[ids].sum()) >= target:
            return _exact_share(ids, weights[ids], row[ids], target)
    return np.arange(len(row))


def _exact_share(ids: Any, weights: Any, logits: Any, target: float) -> Any:
    """Return the most probable of `ids` until their weights reach `target`."""
    order = np.argsort(-logits, kind="stable")
    reached = int(np.searchsorted(np.cumsum(weights[order], dtype=np.float64), target)) + 1
    return ids[order[:reached]]


# Log probabilities of a prompt's own tokens. Every row of the prompt is an output, so a step reads only a few.


def put(batch: Batch, sequence: LlamaSequence, start: int, take: int, others: int) -> bool:
    """Add up to `take` tokens of a prompt with log probabilities, all as outputs; False for any other prompt.

    `others` are the sequences of this step that may need one row each.
    """
    request, cache = sequence.request, sequence.cache
    if not request.prompt_logprobs or request.logprobs is None or sequence.n_generated or cache is None:
        return False
    take = min(take, 1 + MAX_DRAFT, batch.max_outputs - batch.outputs - others)
    if take > 0:
        sequence.row, sequence.scored = batch.outputs, take
        batch.add_embedded(sequence.tokens[start : start + take], sequence.position(start), cache.seq_id)
        del sequence.prompt_logprobs[start + 1 :]  # left by a failed step
    return True


def note(sequence: LlamaSequence, rows: Any, pieces: Pieces[bytes]) -> bool:
    """Store this step's log probabilities of the prompt; True if it is done and its last row can be sampled."""
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


# Samples from the whole vocabulary by temperature alone: gives llama.cpp's tokens, with sums over blocks.

# Weights of numpy and llama.cpp differ in the last digits of exp (numpy: 2.5 units, C libraries: 1), sums by less.
MARGIN: Final = 1e-6
# llama.cpp replaces this seed by a random one.
ANY_SEED: Final = 0xFFFFFFFF


class FullVocabSampler:
    """Samples the same token as llama.cpp's last stage with this seed, in a quarter of its time.

    If the random number is so near the edge of a token that rounding could decide, `sample` returns None and the
    chain must sample. Its generator is then `behind` by that many numbers.
    """

    def __init__(self, seed: int, temperature: float) -> None:
        self._random = mersenne_twister(seed)
        self._temperature = np.float32(temperature)
        self.behind = 0

    def sample(self, row: Any, best: int) -> int | None:
        """Return the token sampled from a row (n_vocab,) float32 whose most likely token is `best`, or None."""
        number = self._random.getrandbits(64) / 2**64
        token = _token_at(row, row[best], self._temperature, number)
        self.behind += token is not None
        return token


def mersenne_twister(seed: int) -> random.Random:
    """Return the generator of C++'s std::mt19937 with this seed: Python's own, with its state set.

    numpy has it too, but takes 20 ms and 3 MB to import. Source: the C++ standard, mersenne_twister_engine.
    """
    words = [seed]
    for i in range(1, 624):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + i) & 0xFFFFFFFF)
    generator = random.Random()  # noqa: S311 - samples tokens, no secrets
    generator.setstate((3, (*words, 624), None))
    return generator


def _token_at(row: Any, top: Any, temperature: Any, number: float) -> int | None:
    """Return the token at `number` (0 to 1) of the summed probabilities; None near the edge of one."""
    weights = np.empty(-(-len(row) // BLOCK) * BLOCK, np.float32)
    weights[len(row) :] = 0
    own = weights[: len(row)]
    np.divide(row, temperature, out=own)
    own -= top / temperature
    np.exp(own, out=own)
    sums = weights.reshape(-1, BLOCK).sum(axis=1, dtype=np.float64).cumsum()
    target, margin = number * sums[-1], MARGIN * sums[-1]
    block = int(sums.searchsorted(target))
    if block == len(sums):
        return None
    edges = np.empty(BLOCK + 1, np.float64)
    edges[0] = sums[block - 1] if block else 0.0
    weights[block * BLOCK : (block + 1) * BLOCK].cumsum(dtype=np.float64, out=edges[1:])
    edges[1:] += edges[0]
    offset = int(edges[1:].searchsorted(target))
    if offset == BLOCK or target - edges[offset] < margin or edges[offset + 1] - target < margin:
        return None
    return block * BLOCK + offset


def skip(api: Any, chain: Any, count: int) -> None:
    """Advance a chain's generator by `count` samples, by sampling from two tokens."""
    array, _owner = _even(api, 2)
    for _ in range(count):
        api.llama_sampler_apply(chain, ctypes.byref(array))


@cache
def same_generator(api: Any) -> bool:
    """Whether llama.cpp samples the same tokens: C++ leaves it to the library how random bits become a fraction."""
    mine, seed = FullVocabSampler(2026, 1.0), 2026
    stage = api.llama_sampler_init_dist(seed)
    row = np.zeros(4096, np.float32)
    try:
        for _ in range(8):
            array, _owner = _even(api, len(row))
            api.llama_sampler_apply(stage, ctypes.byref(array))
            token = mine.sample(row, 0)
            if token is not None and token != array.selected:
                return False
            skip(api, stage, 1)
            mine.sample(row, 0)
    finally:
        api.llama_sampler_free(stage)
    return True


def _even(api: Any, count: int) -> tuple[Any, Any]:
    """Return candidates of equal probability, and the object that must live as long as they do."""
    candidates = (api.llama_token_data * count)()
    array = api.llama_token_data_array()
    array.data = ctypes.cast(candidates, ctypes.POINTER(api.llama_token_data))
    array.size = count
    array.selected = -1
    array.sorted = False
    return array, candidates
