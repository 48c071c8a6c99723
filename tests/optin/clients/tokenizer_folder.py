"""A tokenizer folder for evaluation programs, made of a GGUF file. Usage: tokenizer_folder.py FILE FOLDER."""

import sys
from pathlib import Path

from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

file, folder = Path(sys.argv[1]), sys.argv[2]
fields = GGUFReader(str(file)).fields


def strings(name):
    """The strings of an array."""
    field = fields[f"tokenizer.ggml.{name}"]
    return [bytes(field.parts[index]).decode() for index in field.data]


tokens = strings("tokens")
merges = [tuple(merge.split(" ")) for merge in strings("merges")]
made = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
# As in llama.cpp for `smollm`: separate digits, then GPT-2's pattern over bytes.
made.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
made.decoder = decoders.ByteLevel()
special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)
