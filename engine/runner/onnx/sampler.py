"""Sample the next token in numpy: the same stages, in the same order and with the same meaning as llama.cpp's."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from engine.core.types import SamplingParams
from engine.runner.generation.sampler import DEFAULT_ORDER, PENALTIES, NotFinite, Sampler
from engine.runner.onnx.errors import UnsupportedParameter

# llama.cpp runs XTC only on distributions with at least this many candidates above the threshold.
_XTC_MIN_TOKENS: Final = 2


class NumpySampler(Sampler):
    """The sampling state of one sequence, with the stages of this file."""

    def __init__(self, params: SamplingParams, prompt: list[int]) -> None:
        """Raises: UnsupportedParameter: a stage that exists only in llama.cpp."""
        if params.dry_multiplier > 0:
            raise UnsupportedParameter("dry_multiplier", "The ONNX runner has no DRY sampling; leave it out.")
        if params.mirostat:
            raise UnsupportedParameter("mirostat", "The ONNX runner has no Mirostat; leave it out.")
        if params.adaptive_target >= 0:
            raise UnsupportedParameter("adaptive_target", "The ONNX runner has no adaptive sampling; leave it out.")
        order = DEFAULT_ORDER if params.order is None else params.order
        if PENALTIES in order and order[0] != PENALTIES:
            raise UnsupportedParameter("order", "The ONNX runner applies penalties before every other stage.")
        unknown = [name for name in order if name not in {*STAGES, PENALTIES}]
        if unknown:
            raise UnsupportedParameter("order", f"There is no sampling stage {unknown[0]!r}.")
        super().__init__(params, prompt)
        self._order = tuple(name for name in order if name not in {"dry", PENALTIES})
        self._random = np.random.default_rng(self.seed)

    def _choose(self, row: Any, best: int) -> int:
        if self.greedy:
            return best
        ids = np.flatnonzero(np.isfinite(row))
        ids = ids[np.argsort(-row[ids], kind="stable")]
        logits = row[ids].astype(np.float64)
        for name in self._order:
            chosen, logits = STAGES[name](logits, self._params, self._random)
            ids = ids[chosen]
        weights = np.exp(logits - logits.max())
        share = weights / weights.sum()
        if not np.isfinite(share).all():
            raise NotFinite("the probabilities are not numbers")
        return int(
            ids[int(np.searchsorted(np.cumsum(share), self._random.random(), side="right").clip(0, len(ids) - 1))]
        )


Stage = Callable[[Any, SamplingParams, Any], tuple[Any, Any]]


def _probabilities(logits: Any) -> Any:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def _first(logits: Any, count: int) -> tuple[Any, Any]:
    chosen = np.arange(max(1, min(count, len(logits))))
    return chosen, logits[chosen]


def _all(logits: Any) -> tuple[Any, Any]:
    return np.arange(len(logits)), logits


def _top_k(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    return _first(logits, p.top_k) if p.top_k > 0 else _all(logits)


def _top_p(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    if p.top_p >= 1:
        return _all(logits)
    return _first(logits, int(np.searchsorted(np.cumsum(_probabilities(logits)), p.top_p)) + 1)


def _min_p(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    if p.min_p <= 0:
        return _all(logits)
    return _first(logits, int((logits >= logits.max() + np.log(p.min_p)).sum()))


def _typical(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    if p.typical_p >= 1:
        return _all(logits)
    share = _probabilities(logits)
    surprise = -np.log(np.maximum(share, 1e-300))
    order = np.argsort(np.abs(surprise - (share * surprise).sum()), kind="stable")
    count = int(np.searchsorted(np.cumsum(share[order]), p.typical_p)) + 1
    chosen = np.sort(order[:count])
    return chosen, logits[chosen]


def _top_n_sigma(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    if p.top_n_sigma <= 0:
        return _all(logits)
    return _first(logits, int((logits >= logits.max() - p.top_n_sigma * logits.std()).sum()))


def _xtc(logits: Any, p: SamplingParams, random: Any) -> tuple[Any, Any]:
    """Now and then, leave out all but the least probable of the likely tokens."""
    if p.xtc_probability <= 0 or p.xtc_threshold > 0.5 or random.random() > p.xtc_probability:  # noqa: PLR2004
        return _all(logits)
    likely = int((_probabilities(logits) >= p.xtc_threshold).sum())
    chosen = np.arange(likely - 1 if likely >= _XTC_MIN_TOKENS else 0, len(logits))
    return chosen, logits[chosen]


def _temperature(logits: Any, p: SamplingParams, _random: Any) -> tuple[Any, Any]:
    """Scaled logits; with a range, by the share of the largest entropy. Source: llama.cpp, temp_ext."""
    temperature = p.temperature
    if p.dynatemp_range > 0 and len(logits) > 1:
        low, high = max(0.0, temperature - p.dynatemp_range), temperature + p.dynatemp_range
        share = _probabilities(logits)
        entropy = -(share * np.log(np.maximum(share, 1e-300))).sum() / np.log(len(logits))
        temperature = low + (high - low) * entropy**p.dynatemp_exponent
    return np.arange(len(logits)), logits / max(temperature, 1e-6)


STAGES: Final[dict[str, Stage]] = {
    "dry": lambda logits, _p, _random: _all(logits),
    "top_n_sigma": _top_n_sigma,
    "top_k": _top_k,
    "typical_p": _typical,
    "top_p": _top_p,
    "min_p": _min_p,
    "xtc": _xtc,
    "temperature": _temperature,
}
