"""Reference logits of a checkpoint by transformers, in float32. Needs torch and transformers.

make_logits.py FOLDER IDS.json OUT.npy
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def main(folder: str, ids: str, out: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.tensor([json.loads(Path(ids).read_text())])
    with torch.no_grad():
        np.save(out, model(tokens).logits[0].numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
