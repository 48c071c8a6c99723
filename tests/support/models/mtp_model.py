"""A tiny model with a multi-token prediction head whose draft tokens are known in advance."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal
from unittest import mock

import numpy as np

from tests.support.models import architectures
from tests.support.models.architectures import (
    DELTA_NET,
    DELTA_NET_META,
    EXPERTS,
    EXPERTS_META,
    GATED,
    GATED_QKV,
    LATENT,
    LATENT_META,
    NORMS,
    QK_NORMS,
    QKV,
    SHARED,
    TOP,
    Architecture,
)

BODY = f"attn_norm:E post_attention_norm:E {QKV}"
MIXED = f"{BODY} {EXPERTS} exp_probs_b.bias:X {SHARED}"
NEXT = "nextn.eh_proj.weight:E,2Q nextn.enorm.weight:E nextn.hnorm.weight:E nextn.shared_head_norm.weight:E"
GATED_BODY = f"attn_norm:E post_attention_norm:E {GATED_QKV} {QK_NORMS}"
SHARED_MIX = f"{EXPERTS} {SHARED} ffn_gate_inp_shexp:E"
LATENT_MIXED = f"{NORMS} {LATENT} {EXPERTS} {SHARED} exp_probs_b.bias:X"
ONE_HEAD = {"nextn_predict_layers": 1}
LAYERS = ("dense", "experts", "experts", "head")
HYBRID_LAYERS = ("state", "attention", "state", "head")
MTP_MODELS = {
    "glm4moe": Architecture(
        "glm4moe",
        {"dense": f"{BODY} {GATED}", "experts": MIXED, "head": f"{MIXED} {NEXT}"},
        TOP,
        meta={
            **EXPERTS_META,
            **ONE_HEAD,
            "leading_dense_block_count": 1,
            "expert_shared_count": 1,
            "expert_weights_scale": 1.0,
        },
        layers=LAYERS,
    ),
    "deepseek2": Architecture(
        "deepseek2",
        {"dense": f"{NORMS} {LATENT} {GATED}", "experts": LATENT_MIXED, "head": f"{LATENT_MIXED} {NEXT}"},
        TOP,
        meta={**LATENT_META, **ONE_HEAD, "expert_gating_func": 2, "expert_weights_norm": True},
        layers=LAYERS,
    ),
    "qwen35": Architecture(
        "qwen35",
        {
            "state": f"attn_norm:E post_attention_norm:E {DELTA_NET} {GATED}",
            "attention": f"{GATED_BODY} {GATED}",
            "head": f"{GATED_BODY} {GATED} {NEXT}",
        },
        TOP,
        meta={**DELTA_NET_META, **ONE_HEAD},
        layers=HYBRID_LAYERS,
    ),
    "qwen35moe": Architecture(
        "qwen35moe",
        {
            "state": f"attn_norm:E post_attention_norm:E {DELTA_NET} {SHARED_MIX}",
            "attention": f"{GATED_BODY} {SHARED_MIX}",
            "head": f"{GATED_BODY} {SHARED_MIX} {NEXT}",
        },
        TOP,
        meta={**DELTA_NET_META, **EXPERTS_META, **ONE_HEAD, "expert_shared_feed_forward_length": 64},
        layers=HYBRID_LAYERS,
    ),
}
ADDED = ("attn_output.weight", "ssm_out.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight")
Kind = Literal["right", "newest", "random"]


def write_mtp_model(path: Path, kind: Kind, arch: str = "glm4moe", seed: int = 3) -> str:
    """Write the file.

    `right`: layers add nothing, so the next token depends only on the newest one, and the head's drafts are right.
    `newest`: the head passes on the target's hidden row, which encodes the newest token, so its drafts are wrong.
    `random`: a head with random weights.
    """
    usual = architectures.values_of
    with mock.patch.object(architectures, "values_of", _values(usual, kind)):
        architectures.write_architecture(path, MTP_MODELS[arch], seed)
    return str(path)


def _values(usual: Callable[..., np.ndarray], kind: Kind) -> Callable[..., np.ndarray]:
    def values(rng: np.random.Generator, name: str, dims: tuple[int, ...]) -> np.ndarray:
        found = usual(rng, name, dims)
        if kind == "random":
            return found
        if name == "output.weight":
            return 20 * found  # large logits: one clear winner
        if "eh_proj" in name:  # of [embedding, hidden row], both normalized, use one half
            nothing, whole = np.zeros((dims[0], dims[0]), np.float32), np.eye(dims[0], dtype=np.float32)
            return np.hstack([whole, nothing] if kind == "right" else [nothing, whole])
        if name.endswith(ADDED) and (kind == "right" or name.startswith(f"blk.{architectures.LAYERS - 1}.")):
            return np.zeros(dims, np.float32)
        return np.ones(dims, np.float32) if "norm.weight" in name and "attn" not in name else found

    return values
