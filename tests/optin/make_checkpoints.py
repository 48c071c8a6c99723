"""Write small random checkpoints of every family the converter knows. Needs torch, transformers, sentencepiece.

make_checkpoints.py FOLDER
"""

import json
import sys
from pathlib import Path

import sentencepiece
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = Path("assets/text/calibration.txt")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def bpe(folder: Path, pattern: str, vocab: int) -> None:
    tokenizer = Tokenizer(models.BPE(ignore_merges=pattern is LLAMA3))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - 1,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(TEXT)], trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False, special=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
        "add_bos_token": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def spm(folder: Path, vocab: int, *, prefix: bool) -> None:
    sentencepiece.SentencePieceTrainer.train(
        input=str(TEXT),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=vocab - 8,
        model_type="bpe",
        byte_fallback=True,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        user_defined_symbols=["<start_of_turn>"],
        add_dummy_prefix=prefix,
        minloglevel=2,
    )
    (folder / "tokenizer.vocab").unlink()
    added = {
        "1": {"content": "<s>", "special": True},
        "2": {"content": "</s>", "special": True},
        str(vocab - 8): {"content": "<|end|>", "special": True},
        str(vocab - 7): {"content": "<unused0>", "special": False},
        str(vocab - 6): {"content": "\u2581\u2581", "special": False},
    }
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": added,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def save(root: Path, name: str, config: transformers.PretrainedConfig, tokenizer: str, dtype: str) -> None:
    folder = root / name
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "norm" in key:
                value.add_(torch.randn_like(value) * 0.1)
            elif key.endswith("bias"):
                value.copy_(torch.randn_like(value) * 0.1)
    shard = "300KB" if name == "llama-sharded" else "5GB"
    model.save_pretrained(folder, max_shard_size=shard)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: [en]\ntags: [test]\n---\n# Test\n")
    if tokenizer == "spm":
        spm(folder, config.vocab_size, prefix=not name.startswith("gemma"))
    else:
        bpe(folder, {"llama3": LLAMA3, "qwen2": QWEN2}[tokenizer], config.vocab_size)


def main(root: Path) -> None:
    t = transformers
    vocab = {"vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2}
    llama3 = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 512,
    }  # fmt: skip
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 512}
    save(root, "llama-spm", t.LlamaConfig(**SMALL, **vocab), "spm", "float16")
    save(root, "llama-sharded", t.LlamaConfig(**SMALL, **vocab, rope_parameters=llama3), "llama3", "bfloat16")
    tied = SMALL | {"head_dim": 64}
    save(root, "llama-tied", t.LlamaConfig(**tied, **vocab, tie_word_embeddings=True), "llama3", "float32")
    save(root, "mistral", t.MistralConfig(**SMALL, **vocab, head_dim=32), "spm", "bfloat16")
    save(root, "smollm3", t.SmolLM3Config(**SMALL, **vocab), "llama3", "bfloat16")
    moe = {"num_local_experts": 4, "num_experts_per_tok": 2}
    save(root, "mixtral", t.MixtralConfig(**SMALL, **vocab, **moe), "spm", "bfloat16")
    save(root, "qwen2", t.Qwen2Config(**SMALL, **vocab, rope_parameters=yarn), "qwen2", "bfloat16")
    save(root, "qwen3", t.Qwen3Config(**SMALL, **vocab, head_dim=64), "qwen2", "bfloat16")
    experts = {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "head_dim": 32,
        "norm_topk_prob": True,
    }
    save(root, "qwen3-moe", t.Qwen3MoeConfig(**SMALL, **vocab, **experts), "qwen2", "bfloat16")
    save(
        root,
        "gemma2",
        t.Gemma2Config(**SMALL, **vocab, head_dim=32, sliding_window=256, query_pre_attn_scalar=32),
        "spm",
        "bfloat16",
    )
    linear = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    gemma3 = t.Gemma3TextConfig(
        **SMALL, **vocab, head_dim=32, sliding_window=256, rope_parameters=linear, query_pre_attn_scalar=32
    )
    save(root, "gemma3", gemma3, "spm", "bfloat16")
    # llama.cpp wants certain tokens where "phi3" is in the name of the model.
    phi = {"pad_token_id": 0, "original_max_position_embeddings": 512, "sliding_window": 300}
    save(root, "phi-small", t.Phi3Config(**SMALL, **vocab, **phi), "spm", "bfloat16")
    halves = SMALL["hidden_size"] // SMALL["num_attention_heads"] // 2
    longrope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 512,
        "long_factor": [1.0 + i / 4 for i in range(halves)], "short_factor": [1.0] * halves,
    }  # fmt: skip
    save(root, "phi-long", t.Phi3Config(**SMALL, **vocab, **phi, rope_parameters=longrope), "spm", "bfloat16")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
