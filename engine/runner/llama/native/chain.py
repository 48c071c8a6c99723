"""Builds llama.cpp sampler chains from sampling parameters: one small function per stage."""

import ctypes
from collections.abc import Callable
from typing import Any, Final

import msgspec

from engine.core.types import SamplingParams
from engine.runner.generation.sampler import DEFAULT_ORDER, PENALTIES

# Number of tokens in Mirostat 1's estimate. Source: the authors' value, also llama.cpp's.
_MIROSTAT_M: Final = 100

Stage = Callable[[Any, Any, SamplingParams, int], Any]


def _dry(api: Any, vocab: Any, p: SamplingParams, n_ctx: int) -> Any:
    if p.dry_multiplier <= 0:
        return None
    breakers = [b.encode() for b in p.dry_sequence_breakers]
    array = (ctypes.c_char_p * len(breakers))(*breakers)
    last_n = p.dry_penalty_last_n if p.dry_penalty_last_n >= 0 else n_ctx
    pointer = ctypes.cast(array, ctypes.POINTER(ctypes.c_char_p))
    return api.llama_sampler_init_dry(
        vocab, p.dry_multiplier, p.dry_base, p.dry_allowed_length, last_n, pointer, len(breakers)
    )


def _temperature(api: Any, _vocab: Any, p: SamplingParams, _n_ctx: int) -> Any:
    if p.temperature <= 0:
        return None
    if p.dynatemp_range > 0:
        return api.llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent)
    return api.llama_sampler_init_temp(p.temperature) if p.temperature != 1 else None


STAGES: Final[dict[str, Stage]] = {
    "dry": _dry,
    "top_n_sigma": lambda api, _v, p, _n: (
        api.llama_sampler_init_top_n_sigma(p.top_n_sigma) if p.top_n_sigma > 0 else None
    ),
    "top_k": lambda api, _v, p, _n: api.llama_sampler_init_top_k(p.top_k) if p.top_k > 0 else None,
    "typical_p": lambda api, _v, p, _n: api.llama_sampler_init_typical(p.typical_p, 1) if p.typical_p < 1 else None,
    "top_p": lambda api, _v, p, _n: api.llama_sampler_init_top_p(p.top_p, 1) if p.top_p < 1 else None,
    "min_p": lambda api, _v, p, _n: api.llama_sampler_init_min_p(p.min_p, 1) if p.min_p > 0 else None,
    "xtc": lambda api, _v, p, _n: (
        api.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, 1, p.seed or 0)
        if p.xtc_probability > 0
        else None
    ),
    "temperature": _temperature,
    "infill": lambda api, vocab, _p, _n: api.llama_sampler_init_infill(vocab),
}


def build(api: Any, vocab: Any, p: SamplingParams, n_ctx: int, seed: int) -> tuple[Any, Any]:
    """Return the chain before the penalties (None if there are no stages before them), and the one that samples.

    Free both with `llama_sampler_free`. Raises: KeyError: an unknown stage in `p.order`.
    """
    p = msgspec.structs.replace(p, seed=seed)
    order = p.order if p.order is not None else DEFAULT_ORDER
    split = order.index(PENALTIES) if PENALTIES in order and not p.mirostat else 0
    first = [STAGES[name](api, vocab, p, n_ctx) for name in order[:split]]
    before = _chain(api, [s for s in first if s is not None])
    after = tuple(name for name in order[split:] if name != PENALTIES)
    sampling = _chain(api, _stages(api, vocab, p, n_ctx, after))
    return before, sampling


def _chain(api: Any, stages: list[Any]) -> Any:
    if not stages:
        return None
    chain_params = api.llama_sampler_chain_default_params()
    chain_params.no_perf = True
    chain = api.llama_sampler_chain_init(chain_params)
    for stage in stages:
        if not stage:  # a NULL stage in a chain ends the process
            api.llama_sampler_free(chain)
            raise ValueError("llama.cpp refused a sampler stage")
        api.llama_sampler_chain_add(chain, stage)
    return chain


def _stages(api: Any, vocab: Any, p: SamplingParams, n_ctx: int, order: tuple[str, ...]) -> list[Any]:
    seed = p.seed
    if p.mirostat == 1:
        n_vocab = api.llama_vocab_n_tokens(vocab)
        last = api.llama_sampler_init_mirostat(n_vocab, seed, p.mirostat_tau, p.mirostat_eta, _MIROSTAT_M)
        return [api.llama_sampler_init_temp(p.temperature), last]
    if p.mirostat:
        last = api.llama_sampler_init_mirostat_v2(seed, p.mirostat_tau, p.mirostat_eta)
        return [api.llama_sampler_init_temp(p.temperature), last]
    stages = [STAGES[name](api, vocab, p, n_ctx) for name in order]
    if p.temperature <= 0:
        last = api.llama_sampler_init_greedy()
    elif p.adaptive_target >= 0:
        last = api.llama_sampler_init_adaptive_p(p.adaptive_target, p.adaptive_decay, seed)
    else:
        last = api.llama_sampler_init_dist(seed)
    return [*(s for s in stages if s is not None), last]
