"""Writes small random checkpoints of families that only llama.cpp's converter knows, and their logits.

    foreign_checkpoints.py FOLDER       in the converter's own environment (torch, transformers, sentencepiece)

Uses SentencePiece and llama.cpp's own vocabularies: a byte-level tokenizer works only if llama.cpp knows its hash.
"""

import json
import sys
from pathlib import Path

import numpy as np
import sentencepiece
import torch
import transformers as t

TEXT = Path("assets/text/calibration.txt")
TOKENS = 96
VOCAB = 1024
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 2048, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def tokenizer(folder: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        input=str(TEXT), model_prefix=str(folder / "tokenizer"), vocab_size=VOCAB, model_type="bpe",
        byte_fallback=True, unk_id=0, bos_id=1, eos_id=2, pad_id=-1, minloglevel=2,
    )  # fmt: skip
    (folder / "tokenizer.vocab").unlink()
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def main(root: Path) -> None:
    multipliers = {"embedding_multiplier": 6.0, "attention_multiplier": 0.2, "residual_multiplier": 0.4}
    mamba = {"vocab_size": 50280, "hidden_size": 128, "num_hidden_layers": 3, "state_size": 16, "conv_kernel": 4}
    configs = {
        "granite": t.GraniteConfig(**SMALL, **multipliers, logits_scaling=2.0),
        "gemma-1": t.GemmaConfig(**SMALL, head_dim=32),
        "ernie-4.5": t.Ernie4_5Config(**SMALL, head_dim=32),
        "mamba": t.MambaConfig(**mamba, expand=2, time_step_rank=8, bos_token_id=0, eos_token_id=0),
    }
    for name, config in configs.items():
        torch.manual_seed(len(name))
        model = t.AutoModelForCausalLM.from_config(config).float().eval()
        with torch.no_grad():
            for key, value in model.named_parameters():
                if "norm" in key:
                    value.add_(torch.randn_like(value) * 0.1)
        folder = root / name
        model.save_pretrained(folder)
        if name != "mamba":
            tokenizer(folder)
        tokens = torch.tensor(np.random.default_rng(1).integers(10, 1000, TOKENS))[None]
        with torch.no_grad():
            np.save(root / f"{name}.npy", model(tokens).logits[0].numpy())
        print(name, sum(p.numel() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
