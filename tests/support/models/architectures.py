"""Tiny random-weight GGUF files of the architectures that llama.cpp supports: a few hundred KiB each.

An architecture is its metadata and its tensors. Tensors are written as `name:rows,columns` (numpy order) with the
letters of DIMS. `.weight` is added unless the name has a dot; a leading `=` keeps the name as it is; `enc/` is put
before `blk`. Layers may differ: `layers` names the block of each layer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

LAYERS = 4
# E embedding, Q all query heads, K all key heads, D one head, F feed-forward, X experts, W width of one expert, V
# vocabulary, S state-space inner, N state size, P input projection of Mamba 2, C channels of its convolution, T its
# heads, R a low rank, O rank of the compressed KV, M the same plus the rotated part.
DIMS = {
    "E": 128, "Q": 128, "K": 64, "D": 32, "H": 4, "F": 192, "X": 4, "W": 64, "V": 512, "S": 256, "N": 16, "P": 580,
    "C": 320, "T": 4, "R": 32, "O": 64, "M": 80, "QKV": 256, "2F": 384, "2S": 512, "3E": 384, "G": 2, "SG": 128,
    "L": 48, "U": 16, "B": 8, "Z": 64, "2Q": 256, "MLA": 192, "QKVS": 512,
}  # fmt: skip

TOP = "token_embd:V,E output_norm:E output:V,E"
TIED = "token_embd:V,E output_norm:E"
QKV = "attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q"
BIASES = "attn_q.bias:Q attn_k.bias:K attn_v.bias:K"
QK_NORMS = "attn_q_norm:D attn_k_norm:D"
GATED = "ffn_gate:F,E ffn_up:F,E ffn_down:E,F"
EXPERTS = "ffn_gate_inp:X,E ffn_gate_exps:X,W,E ffn_up_exps:X,W,E ffn_down_exps:X,E,W"
WIDE_EXPERTS = "ffn_gate_inp:X,E ffn_gate_exps:X,F,E ffn_up_exps:X,F,E ffn_down_exps:X,E,F"
SHARED = "ffn_gate_shexp:W,E ffn_up_shexp:W,E ffn_down_shexp:E,W"
NORMS = "attn_norm:E ffn_norm:E"
NORM_BIASES = "attn_norm.bias:E ffn_norm.bias:E"
POST_NORMS = "post_attention_norm:E post_ffw_norm:E"
MAMBA = (
    "ssm_in:2S,E ssm_conv1d:S,4 ssm_conv1d.bias:S ssm_x:L,S ssm_dt:S,U ssm_dt.bias:S =ssm_a:S,N =ssm_d:S "
    "ssm_out:E,S"
)
MAMBA2 = "ssm_in:P,E ssm_conv1d:C,4 ssm_conv1d.bias:C ssm_dt.bias:T =ssm_a:T,1 =ssm_d:T,1 ssm_norm:G,SG ssm_out:E,S"
LATENT = (
    "attn_kv_a_norm:O attn_kv_a_mqa:M,E attn_k_b:H,O,U attn_v_b:H,D,O attn_output:E,Q "
    "attn_q_a:R,E attn_q_a_norm:R attn_q_b:Q,R"
)
GATED_QKV = "attn_q:2Q,E attn_k:K,E attn_v:K,E attn_output:E,Q"
DELTA_NET = (
    "attn_qkv:QKVS,E attn_gate:S,E ssm_conv1d:QKVS,4 ssm_dt.bias:T =ssm_a:T ssm_beta:T,E ssm_alpha:T,E ssm_norm:Z "
    "ssm_out:E,S"
)
DELTA_NET_META = {
    "ssm.conv_kernel": 4, "ssm.inner_size": 256, "ssm.state_size": 64, "ssm.time_step_rank": 4,
    "ssm.group_count": 2, "full_attention_interval": 2, "rope.dimension_sections": [4, 6, 6, 0],
}  # fmt: skip
RWKV7 = (
    "attn_norm:E attn_norm.bias:E attn_norm_2:E attn_norm_2.bias:E time_mix_w0:E time_mix_w1:R,E time_mix_w2:E,R "
    "time_mix_a0:E time_mix_a1:R,E time_mix_a2:E,R time_mix_v0:E time_mix_v1:R,E time_mix_v2:E,R "
    "time_mix_g1:R,E time_mix_g2:E,R time_mix_lerp_fused:6,1,1,E time_mix_k_k:E time_mix_k_a:E time_mix_r_k:E "
    "time_mix_key:E,E time_mix_value:E,E time_mix_receptance:E,E time_mix_ln:E time_mix_ln.bias:E "
    "time_mix_output:E,E channel_mix_lerp_k:1,1,E channel_mix_key:F,E channel_mix_value:E,F"
)
T5 = (
    "attn_norm:E attn_q:Q,E attn_k:Q,E attn_v:Q,E attn_o:E,Q attn_rel_b:B,H "
    "ffn_norm:E ffn_gate:F,E ffn_down:E,F ffn_up:F,E "
)
T5_CROSS = "cross_attn_norm:E cross_attn_q:Q,E cross_attn_k:Q,E cross_attn_v:Q,E cross_attn_o:E,Q"
ENCODER = (
    f"{QKV} {BIASES} attn_output.bias:E attn_output_norm:E attn_output_norm.bias:E ffn_up:F,E ffn_down:E,F "
    "layer_output_norm:E layer_output_norm.bias:E"
)
ENCODER_TOP = "token_embd:V,E token_types:2,E token_embd_norm:E token_embd_norm.bias:E"

MAMBA_META = {"ssm.conv_kernel": 4, "ssm.inner_size": 256, "ssm.state_size": 16, "ssm.time_step_rank": 16}
MAMBA2_META = {**MAMBA_META, "ssm.time_step_rank": 4, "ssm.group_count": 2}
EXPERTS_META = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64}
LATENT_META = {
    **EXPERTS_META,
    "attention.q_lora_rank": 32, "attention.kv_lora_rank": 64, "attention.key_length": 80,
    "attention.value_length": 64, "attention.key_length_mla": 32, "attention.value_length_mla": 32,
    "attention.head_count_kv": 1, "rope.dimension_count": 16, "leading_dense_block_count": 1,
    "expert_shared_count": 1, "expert_weights_scale": 1.0,
}  # fmt: skip
GAINS = {"token_embd": 0.5, "attn_q.": 2.0, "attn_k.": 2.0, "attn_qkv": 2.0, "attn_output": 2.0, "down": 2.0}
WINDOW = {"attention.sliding_window": 64}


@dataclass(frozen=True)
class Architecture:
    """`blocks` are the tensors per kind of layer; `layers` is each layer's kind (None: `blocks` is one spec)."""

    arch: str
    blocks: Mapping[str, str] | str
    top: str = TOP
    meta: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[str, ...] | None = None
    encoder: bool = False

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Full names and dimensions, row length last."""
        yield from ((name, dims) for name, dims in _parse(self.top))
        for i in range(LAYERS):
            block = self.blocks if isinstance(self.blocks, str) else self.blocks[(self.layers or ())[i]]
            for name, dims in _parse(block):
                side, _, rest = name.rpartition("/")
                yield (f"{side}.blk.{i}.{rest}" if side else f"blk.{i}.{name}"), dims


def _parse(spec: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    for entry in spec.split():
        name, _, letters = entry.partition(":")
        dims = tuple(DIMS[x] if x in DIMS else int(x) for x in letters.split(","))
        yield (name[1:] if name.startswith("=") else name if "." in name else f"{name}.weight"), dims


LLAMA = f"{NORMS} {QKV} {GATED}"
ATTENTION_THEN = ("state", "attention", "state", "attention")

ARCHITECTURES: dict[str, Architecture] = {
    "Llama, Mistral": Architecture("llama", LLAMA),
    "Mixtral": Architecture(
        "llama",
        f"{NORMS} {QKV} {WIDE_EXPERTS}",
        meta={"expert_count": 4, "expert_used_count": 2},
    ),
    "Qwen 2": Architecture("qwen2", f"{LLAMA} {BIASES}", TIED),
    "Qwen 2 MoE": Architecture(
        "qwen2moe",
        f"{NORMS} {QKV} {BIASES} {EXPERTS} {SHARED} ffn_gate_inp_shexp:E",
        meta={**EXPERTS_META, "expert_shared_feed_forward_length": 64},
    ),
    "Qwen 3": Architecture("qwen3", f"{LLAMA} {QK_NORMS}", TIED),
    "Qwen 3 MoE": Architecture("qwen3moe", f"{NORMS} {QKV} {QK_NORMS} {EXPERTS}", meta=EXPERTS_META),
    "Qwen 3 Next": Architecture(
        "qwen3next",
        {
            "state": f"attn_norm:E post_attention_norm:E attn_qkv:QKVS,E attn_gate:S,E ssm_conv1d:QKVS,4 "
            f"ssm_dt.bias:T =ssm_a:T ssm_ba:B,E ssm_norm:Z ssm_out:E,S {EXPERTS} {SHARED} ffn_gate_inp_shexp:E",
            "attention": f"attn_norm:E post_attention_norm:E attn_q:2Q,E attn_k:K,E attn_v:K,E attn_output:E,Q "
            f"{QK_NORMS} {EXPERTS} {SHARED} ffn_gate_inp_shexp:E",
        },
        meta={
            **EXPERTS_META, "expert_shared_feed_forward_length": 64, "ssm.conv_kernel": 4, "ssm.inner_size": 256,
            "ssm.state_size": 64, "ssm.time_step_rank": 4, "ssm.group_count": 2, "full_attention_interval": 2,
        },
        layers=ATTENTION_THEN,
    ),
    "Qwen 3.5": Architecture(
        "qwen35",
        {
            "state": f"attn_norm:E post_attention_norm:E {DELTA_NET} {GATED}",
            "attention": f"attn_norm:E post_attention_norm:E {GATED_QKV} {QK_NORMS} {GATED}",
        },
        meta=DELTA_NET_META,
        layers=ATTENTION_THEN,
    ),
    "Qwen 3.5 MoE": Architecture(
        "qwen35moe",
        {
            "state": f"attn_norm:E post_attention_norm:E {DELTA_NET} {EXPERTS} {SHARED} ffn_gate_inp_shexp:E",
            "attention": f"attn_norm:E post_attention_norm:E {GATED_QKV} {QK_NORMS} {EXPERTS} {SHARED} "
            "ffn_gate_inp_shexp:E",
        },
        meta={**DELTA_NET_META, **EXPERTS_META, "expert_shared_feed_forward_length": 64},
        layers=ATTENTION_THEN,
    ),
    "Gemma 2": Architecture("gemma2", f"{LLAMA} {POST_NORMS}", TIED, meta=WINDOW),
    "Gemma 3": Architecture(
        "gemma3",
        f"{LLAMA} {QK_NORMS} {POST_NORMS}",
        TIED,
        meta={**WINDOW, "attention.sliding_window_pattern": 2},
    ),
    "Gemma 4": Architecture(
        "gemma4",
        f"{LLAMA} {QK_NORMS} {POST_NORMS}",
        f"{TIED} rope_freqs:U",
        meta={
            **WINDOW, "attention.sliding_window_pattern": [True, True, True, False],
            "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0,
            "attention.key_length_swa": 32, "attention.value_length_swa": 32, "rope.dimension_count_swa": 32,
        },
    ),
    "Phi 2": Architecture(
        "phi2",
        f"attn_norm:E attn_norm.bias:E {QKV} {BIASES} attn_output.bias:E ffn_up:F,E ffn_up.bias:F ffn_down:E,F "
        "ffn_down.bias:E",
        f"{TOP} output_norm.bias:E output.bias:V",
    ),
    "Phi 3, Phi 4": Architecture("phi3", f"{NORMS} attn_qkv:QKV,E attn_output:E,Q ffn_up:2F,E ffn_down:E,F"),
    "DeepSeek V2": Architecture(
        "deepseek2",
        {"dense": f"{NORMS} {LATENT} {GATED}", "experts": f"{NORMS} {LATENT} {EXPERTS} {SHARED}"},
        meta={**LATENT_META, "expert_gating_func": 1},
        layers=("dense", "experts", "experts", "experts"),
    ),
    "DeepSeek V3, R1, Kimi K2": Architecture(
        "deepseek2",
        {
            "dense": f"{NORMS} {LATENT} {GATED}",
            "experts": f"{NORMS} {LATENT} {EXPERTS} {SHARED} exp_probs_b.bias:X",
        },
        meta={**LATENT_META, "expert_gating_func": 2, "expert_weights_norm": True},
        layers=("dense", "experts", "experts", "experts"),
    ),
    "gpt-oss": Architecture(
        "gpt-oss",
        f"attn_norm:E post_attention_norm:E {QKV} {BIASES} attn_output.bias:E attn_sinks:H {EXPERTS} "
        "ffn_gate_inp.bias:X ffn_gate_exps.bias:X,W ffn_up_exps.bias:X,W ffn_down_exps.bias:X,E",
        meta={**EXPERTS_META, **WINDOW},
    ),
    "GLM 4": Architecture("glm4", f"{NORMS} {QKV} {POST_NORMS} ffn_up:2F,E ffn_down:E,F"),
    "Granite": Architecture("granite", LLAMA, TIED, meta={"logit_scale": 2.0, "residual_scale": 0.5}),
    "Granite 4 hybrid": Architecture(
        "granitehybrid",
        {"state": f"{NORMS} {MAMBA2} {GATED}", "attention": f"{NORMS} {QKV} {GATED}"},
        meta={**MAMBA2_META, "attention.head_count_kv": [0, 2, 0, 2]},
        layers=ATTENTION_THEN,
    ),
    "LFM2": Architecture(
        "lfm2",
        {
            "state": f"{NORMS} shortconv.conv.weight:E,3 shortconv.in_proj.weight:3E,E "
            f"shortconv.out_proj.weight:E,E {GATED}",
            "attention": f"{NORMS} {QKV} {QK_NORMS} {GATED}",
        },
        "token_embd:V,E token_embd_norm:E",
        meta={"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0, 2]},
        layers=ATTENTION_THEN,
    ),
    "Mamba": Architecture("mamba", f"attn_norm:E {MAMBA}", TIED, meta={**MAMBA_META, "feed_forward_length": 0}),
    "Mamba 2": Architecture(
        "mamba2", f"attn_norm:E {MAMBA2}", TIED, meta={**MAMBA2_META, "feed_forward_length": 0}
    ),
    "Jamba": Architecture(
        "jamba",
        {
            "state": f"{NORMS} {MAMBA} ssm_dt_norm:U ssm_b_norm:N ssm_c_norm:N {GATED}",
            "attention": f"{NORMS} {QKV} {WIDE_EXPERTS}",
        },
        meta={**MAMBA_META, "expert_count": 4, "expert_used_count": 2, "attention.head_count_kv": [0, 2, 0, 2]},
        layers=ATTENTION_THEN,
    ),
    "RWKV 7": Architecture(
        "rwkv7",
        RWKV7,
        f"{TOP} output_norm.bias:E token_embd_norm:E token_embd_norm.bias:E",
        meta={
            "wkv.head_size": 64, "attention.decay_lora_rank": 32, "attention.iclr_lora_rank": 32,
            "attention.value_residual_mix_lora_rank": 32, "attention.gate_lora_rank": 32, "token_shift_count": 2,
            "attention.head_count": 0,
        },
    ),
    "Falcon H1": Architecture("falcon-h1", f"attn_norm:E =ffn_norm:E {QKV} {MAMBA2} {GATED}", meta=MAMBA2_META),
    "Nemotron-H": Architecture(
        "nemotron_h",
        {
            "state": f"attn_norm:E {MAMBA2}", "attention": f"attn_norm:E {QKV}",
            "feed": "attn_norm:E ffn_up:F,E ffn_down:E,F",
        },
        meta={**MAMBA2_META, "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 192, 0, 192]},
        layers=("state", "feed", "attention", "feed"),
    ),
    "OLMo 2": Architecture("olmo2", f"{QKV} attn_q_norm:Q attn_k_norm:K {POST_NORMS} {GATED}"),
    "OLMoE": Architecture(
        "olmoe",
        f"{NORMS} attn_q:Q,E attn_k:Q,E attn_v:Q,E attn_output:E,Q attn_q_norm:Q attn_k_norm:Q {EXPERTS}",
        meta={**EXPERTS_META, "feed_forward_length": 64, "attention.head_count_kv": 4},
    ),
    "StarCoder 2": Architecture(
        "starcoder2",
        f"{NORMS} {NORM_BIASES} {QKV} {BIASES} attn_output.bias:E ffn_up:F,E ffn_up.bias:F ffn_down:E,F "
        "ffn_down.bias:E",
        f"{TIED} output_norm.bias:E",
    ),
    "Command R": Architecture("command-r", f"attn_norm:E {QKV} {GATED}", TIED, meta={"logit_scale": 1.0}),
    "Command R7B, Command A": Architecture(
        "cohere2", f"attn_norm:E {QKV} {GATED}", TIED, meta={**WINDOW, "logit_scale": 1.0}
    ),
    "EXAONE 4": Architecture("exaone4", f"{QKV} {QK_NORMS} {POST_NORMS} {GATED}", meta=WINDOW),
    "SmolLM 3": Architecture("smollm3", LLAMA, TIED),
    "StableLM 2": Architecture(
        "stablelm", f"{LLAMA} {NORM_BIASES}", f"{TOP} output_norm.bias:E", meta={"use_parallel_residual": True}
    ),
    "MiniCPM 3": Architecture(
        "minicpm3",
        f"{NORMS} attn_q_a:R,E attn_q_a_norm:R attn_q_b:Q,R attn_kv_a_norm:O attn_kv_a_mqa:M,E attn_kv_b:MLA,O "
        f"attn_output:E,Q {GATED}",
        meta={
            "attention.q_lora_rank": 32, "attention.kv_lora_rank": 64, "attention.key_length": 32,
            "attention.value_length": 32, "rope.dimension_count": 16, "attention.head_count_kv": 4,
        },
    ),
    "BERT": Architecture(
        "bert", f"{ENCODER} ffn_up.bias:F ffn_down.bias:E", f"{ENCODER_TOP} position_embd:1024,E", encoder=True
    ),
    "nomic-bert": Architecture("nomic-bert", f"{ENCODER} ffn_gate:F,E", ENCODER_TOP, encoder=True),
    "T5": Architecture(
        "t5",
        " ".join([*(f"enc/{name}" for name in T5.split()), *(f"dec/{name}" for name in (T5 + T5_CROSS).split())]),
        "token_embd:V,E enc.output_norm.weight:E dec.output_norm.weight:E output:V,E",
        meta={"attention.relative_buckets_count": 8, "decoder_start_token_id": 0, "attention.head_count_kv": 4},
    ),
}  # fmt: skip


def write_architecture(path: Path, architecture: Architecture, seed: int = 0) -> Path:
    """Write the file and return its path. All weights are F32, so that kernels differ only by rounding."""
    writer = gguf.GGUFWriter(str(path), architecture.arch)
    for key, value in _metadata(architecture).items():
        _add_value(writer, f"{architecture.arch}.{key}", value)
    _vocabulary(writer, words=architecture.encoder)
    if architecture.encoder:
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
    rng = np.random.default_rng(seed)
    for name, dims in architecture.tensors():
        writer.add_tensor(name, values_of(rng, name, dims))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(architecture: Architecture) -> dict[str, Any]:
    return {
        "context_length": 1024, "embedding_length": DIMS["E"], "block_count": LAYERS,
        "feed_forward_length": DIMS["F"], "attention.head_count": 4, "attention.head_count_kv": 2,
        "attention.key_length": DIMS["D"], "attention.value_length": DIMS["D"], "vocab_size": DIMS["V"],
        "attention.layer_norm_rms_epsilon": 1e-6, "attention.layer_norm_epsilon": 1e-6,
        "rope.dimension_count": DIMS["D"], "rope.freq_base": 10000.0, **architecture.meta,
    }  # fmt: skip


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


def values_of(rng: np.random.Generator, name: str, dims: tuple[int, ...]) -> np.ndarray:
    """Norms near one, small biases, matrices that preserve a vector's length; `ssm_a` must be negative.

    Queries, keys and block outputs are larger, and embeddings smaller; otherwise the output repeats one token.
    """
    noise = rng.standard_normal(dims, dtype=np.float32)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 2 + 0.1 * noise
    if name.endswith(("norm.weight", "norm_2.weight", "time_mix_ln.weight", "ffn_norm")):
        return 1 + 0.1 * noise
    if name.endswith("ssm_a"):
        return -np.abs(noise) - 0.1
    if len(dims) == 1 or "lerp" in name:
        return 0.1 * noise
    gain = next((g for part, g in GAINS.items() if part in name), 1.0)
    return noise * gain * dims[-1] ** -0.5


def _vocabulary(writer: gguf.GGUFWriter, *, words: bool) -> None:
    """Bytes and numbered tokens; for encoders, word pieces with the markers that they expect."""
    size = DIMS["V"]
    if words:
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"\u2581w{i}" for i in range(size - 5))]
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("default")
        writer.add_token_types([gguf.TokenType.CONTROL] * 5 + [gguf.TokenType.NORMAL] * (size - 5))
        writer.add_token_type_count(2)
        for name, token in (("bos", 2), ("eos", 3), ("sep", 3), ("unk", 1), ("pad", 0)):
            getattr(writer, f"add_{name}_token_id")(token)
    else:
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in printable)}
        tokens = [hidden.get(b, chr(b)) for b in range(256)] + [f"<t{i}>" for i in range(256, size)]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_types([gguf.TokenType.NORMAL] * (size - 1) + [gguf.TokenType.CONTROL])
        writer.add_token_merges([f"{hidden[32]} a"])
        writer.add_bos_token_id(size - 1)
        writer.add_eos_token_id(size - 1)
        writer.add_add_bos_token(False)
    writer.add_token_list(tokens)
