"""Sampling from the whole vocabulary by temperature alone: llama.cpp's own tokens, by sums over blocks."""

import ctypes
import random
from functools import cache
from typing import Any, Final

import numpy as np

BLOCK: Final = 64
# Weights here and there differ by the last digits of exp (numpy: 2.5 units, C libraries: 1), sums by less.
MARGIN: Final = 1e-6
# llama.cpp takes this seed as a request to make one up.
ANY_SEED: Final = 0xFFFFFFFF


class FullVocabSampler:
    """Samples what llama.cpp's last stage would with this seed, in a quarter of its time.

    Where the random number lies so near the edge of a token that rounding could decide, `sample` gives None and the
    chain has to sample; its generator is `behind` by that many numbers then.
    """

    def __init__(self, seed: int, temperature: float) -> None:
        self._random = mersenne_twister(seed)
        self._temperature = np.float32(temperature)
        self.behind = 0

    def sample(self, row: Any, best: int) -> int | None:
        """The token sampled from a row (n_vocab,) float32 whose likeliest is `best`."""
        number = self._random.getrandbits(64) / 2**64
        found = _token_at(row, row[best], self._temperature, number)
        self.behind += found is not None
        return found


def mersenne_twister(seed: int) -> random.Random:
    """The generator of C++'s std::mt19937 with this seed, which Python's own is once its state is given.

    numpy has it too, but takes 20 ms and 3 MB to import. Source: the C++ standard, mersenne_twister_engine.
    """
    words = [seed]
    for i in range(1, 624):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + i) & 0xFFFFFFFF)
    generator = random.Random()  # noqa: S311 - samples tokens, no secrets
    generator.setstate((3, (*words, 624), None))
    return generator


def _token_at(row: Any, top: Any, temperature: Any, number: float) -> int | None:
    """The token at `number` (0 to 1) of the summed probabilities, None near the edge of one."""
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
    """Let a chain sample `count` times from two tokens: its generator is then where as many samples leave it."""
    array, _owner = _even(api, 2)
    for _ in range(count):
        api.llama_sampler_apply(chain, ctypes.byref(array))


@cache
def same_generator(api: Any) -> bool:
    """llama.cpp samples what is sampled here: C++ leaves to its library how a fraction is made of random bits."""
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
    """Candidates that are all as likely, and what has to live as long as they."""
    candidates = (api.llama_token_data * count)()
    array = api.llama_token_data_array()
    array.data = ctypes.cast(candidates, ctypes.POINTER(api.llama_token_data))
    array.size = count
    array.selected = -1
    array.sorted = False
    return array, candidates
