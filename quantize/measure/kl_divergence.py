"""KL divergence between the predictions of two models, by position."""

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_CHUNK_VALUES = 1 << 18  # logits per step: scratch memory that fits the CPU's cache


class Comparison(msgspec.Struct, frozen=True):
    """Comparison results by position, all (positions,).

    KL divergence in nats, whether the top token is the same, and the negative log-likelihoods of the actual next
    token (nan if it is unknown).
    """

    kld: npt.NDArray[np.float64]
    same_top: npt.NDArray[np.bool_]
    nll: npt.NDArray[np.float64]
    reference_nll: npt.NDArray[np.float64]


def compare(reference: Floats, other: Floats, following: npt.NDArray[np.int32] | None = None) -> Comparison:
    """Compare logits (positions, num_vocab) of a reference and another model.

    `following` (positions,) are the actual next tokens.
    """
    positions, num_vocab = reference.shape
    kld = np.empty(positions)
    same = np.empty(positions, np.bool_)
    nll = np.full(positions, np.nan)
    reference_nll = np.full(positions, np.nan)
    step = max(1, _CHUNK_VALUES // num_vocab)
    for first in range(0, positions, step):
        part = slice(first, min(positions, first + step))
        p, q = log_softmax(reference[part]), log_softmax(other[part])
        kld[part] = np.einsum("pv,pv->p", np.exp(p), p - q, dtype=np.float64)
        same[part] = p.argmax(axis=1) == q.argmax(axis=1)
        if following is not None:
            index = following[part, None].astype(np.intp)
            nll[part] = -np.take_along_axis(q, index, 1)[:, 0]
            reference_nll[part] = -np.take_along_axis(p, index, 1)[:, 0]
    return Comparison(np.maximum(kld, 0), same, nll, reference_nll)


def kld_from(reference: Floats, logits: Floats) -> npt.NDArray[np.float64]:
    """KL divergence in nats by position, from a reference's log-probabilities and another model's logits."""
    kld = np.empty(len(reference))
    step = max(1, _CHUNK_VALUES // reference.shape[1])
    for first in range(0, len(reference), step):
        p, z = reference[first : first + step], logits[first : first + step]
        highest = z.max(axis=1)
        log_total = highest + np.log(np.exp(z - highest[:, None]).sum(axis=1, dtype=np.float64))
        # This is the sum of p (log p - z) + log_total, because p adds up to 1.
        kld[first : first + step] = np.einsum("pv,pv->p", np.exp(p), p - z, dtype=np.float64) + log_total
    return np.maximum(kld, 0)


def log_softmax(logits: Floats) -> Floats:
    """Log-probabilities of logits (positions, num_vocab)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)).astype(
        np.float32
    )
    return result
