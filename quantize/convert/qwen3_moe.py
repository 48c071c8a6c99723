"""Qwen3 with routed experts."""

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.decoder import LAYER, Config, Rules, decoder_recipe
from quantize.convert.tensor_map import Recipe
from quantize.errors import UnsupportedModel

ARCHITECTURES = ("Qwen3MoeForCausalLM",)


def recipe(source: Checkpoint, config: Config) -> Recipe:
    """How a checkpoint of this family becomes a GGUF file."""
    _check_routing(source, config)
    num_experts = int(config.get("num_experts") or config["num_local_experts"])
    rules = Rules(
        layer_names={**LAYER, "mlp.gate": "ffn_gate_inp"},
        expert_names={"gate_proj": "ffn_gate_exps", "down_proj": "ffn_down_exps", "up_proj": "ffn_up_exps"},
        num_experts=num_experts,
    )
    made = decoder_recipe(source, config, "qwen3moe", rules)
    made.metadata.put(".expert_count", num_experts)
    made.metadata.put(".expert_used_count", int(config["num_experts_per_tok"]))
    made.metadata.put(".expert_feed_forward_length", int(config["moe_intermediate_size"]))
    return made


def _check_routing(source: Checkpoint, config: Config) -> None:
    """Raises: UnsupportedModel: experts are used in a way the runtime has no setting for.

    Source: llama.cpp, src/models/qwen3moe.cpp: chosen experts are normalized, every layer has experts.
    """
    if not config.get("norm_topk_prob", False):
        raise UnsupportedModel(str(source.folder), "norm_topk_prob is false; the runtime always normalizes")
    if config.get("mlp_only_layers") or int(config.get("decoder_sparse_step") or 1) != 1:
        raise UnsupportedModel(str(source.folder), "some layers have no experts")
