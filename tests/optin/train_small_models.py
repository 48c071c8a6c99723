"""Trains small models of other families and widths than the bundled one, to measure quantization loss on them.

python tests/optin/train_small_models.py FOLDER [--families qwen3,phi] [--minutes 20] [--threads 2]

Needs torch and transformers in a separate environment. Text: assets/text/calibration.txt, this project's documents
and the standard library's sources, without files that contain a passage of assets/text/heldout.txt. Each model
becomes FOLDER/FAMILY, a Hugging Face folder with the bundled model's tokenizer, for `tessera quantize` and
tests/bench/quant_frontier.py. A second run continues the training.
"""

import argparse
import math
import shutil
import sysconfig
import time
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
SPARK = ROOT / "tests/data/spark-hf"
TEXT = ROOT / "assets/text"
VOCAB = {"vocab_size": 8192, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
WINDOW, BATCH = 512, 4
_PASSAGE = 120  # characters that are found in two texts only if one has it from the other
_WARM_UP_S = 30.0
_TOP_LR = 0.003


def qwen3() -> transformers.PretrainedConfig:
    """Width 512, norms on q and k, grouped heads, tied head: 11 M weights."""
    return transformers.Qwen3Config(
        **VOCAB, hidden_size=512, intermediate_size=1024, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip


def phi3() -> transformers.PretrainedConfig:
    """Width 768, q, k and v in one tensor, gate and up in another, a head of its own: 21 M weights."""
    return transformers.Phi3Config(
        **VOCAB, hidden_size=768, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=12,
        num_key_value_heads=4, max_position_embeddings=1024, original_max_position_embeddings=1024,
        tie_word_embeddings=False,
    )  # fmt: skip


# llama.cpp wants certain tokens of a model with "phi3" in its name.
FAMILIES = {"qwen3": qwen3, "phi": phi3}


def training_tokens() -> torch.Tensor:
    """All of the text as one row of token ids."""
    held_out = (TEXT / "heldout.txt").read_text(encoding="utf-8")
    passages = [held_out[i : i + _PASSAGE] for i in range(0, len(held_out) - _PASSAGE, 4 * _PASSAGE)]
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *library.glob("*.py")])
    texts = [(TEXT / "calibration.txt").read_text(encoding="utf-8")] * 4
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        if not any(p in text for p in passages):
            texts.append(text)
    tokenizer = Tokenizer.from_file(str(SPARK / "tokenizer.json"))
    rows = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return torch.tensor([i for row in rows for i in row])


def train(family: str, folder: Path, tokens: torch.Tensor, seconds: float) -> None:
    """Learn for so long, then save."""
    torch.seed()
    if (folder / family / "config.json").exists():  # goes on with what an earlier run has learned
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / family, dtype=torch.float32)
    else:
        model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]())
    optimizer = torch.optim.AdamW(model.parameters(), lr=_TOP_LR, betas=(0.9, 0.95), weight_decay=0.01)
    started, step = time.monotonic(), 0
    while (passed := time.monotonic() - started) < seconds:
        # Up in half a minute, then down to nothing at the end.
        share = min(1.0, passed / _WARM_UP_S) * (1 - passed / seconds)
        for group in optimizer.param_groups:
            group["lr"] = _TOP_LR * share
        places = torch.randint(len(tokens) - WINDOW, (BATCH,))
        batch = torch.stack([tokens[i : i + WINDOW] for i in places])
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            told = f"{family}: step {step}, {passed:.0f} s, loss {loss.item():.3f}, perplexity"
            print(told, f"{math.exp(loss.item()):.1f}", flush=True)
        step += 1
    target = folder / family
    model.to(torch.float16).save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SPARK / name, target / name)
    print(f"{family}: {step} steps, {step * BATCH * WINDOW} tokens, in {target}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokens = training_tokens()
    print(f"{len(tokens)} tokens to learn from", flush=True)
    for family in args.families.split(","):
        train(family, args.folder, tokens, 60 * args.minutes)


if __name__ == "__main__":
    main()
