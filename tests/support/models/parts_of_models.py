"""Evaluate models whole and from every split point; report as JSON whether the bits agree.

Usage: parts_of_models.py FOLDER. It is a separate program, because llama.cpp may end the process.
"""

import json
import sys
from pathlib import Path

import numpy as np

from quantize.native.partial_eval import NullTap, PartTap
from quantize.native.reference import ReferenceModel
from tests.support.models.architectures import ARCHITECTURES, write_architecture

WINDOW = 64


def compared(path: Path) -> dict[str, object]:
    """Layers that an evaluation can start at, and those that give other logits than the whole model."""
    with ReferenceModel(path, window=WINDOW, threads=1) as model:
        cuts = model.cuts()
        tokens = np.random.default_rng(0).integers(5, min(model.num_vocab, 380), (1, WINDOW)).astype(np.int32)
        keep = np.ones(WINDOW, np.bool_)
        whole = model.run(tokens, keep)
        reading = PartTap(NullTap(), reads=list(cuts.by_layer.values()))
        wrong = [] if (model.run(tokens, keep, reading) == whole).all() else ["reading"]
        other = (tokens + 1) % 380
        for layer, cut in cuts.by_layer.items():
            start = (cut, reading.found[layer])
            # Use other tokens: nothing before the split point may matter.
            if not (model.run(other, keep, PartTap(NullTap(), start=start)) == whole).all():
                wrong.append(str(layer))
        if not (model.run(tokens, keep) == whole).all():
            wrong.append("afterwards")
        return {"layers": sorted(cuts.by_layer), "wrong": wrong}


def main() -> None:
    folder = Path(sys.argv[1])
    found = {}
    for name, architecture in ARCHITECTURES.items():
        if architecture.arch != "t5":  # its decoder needs an encoder's output
            path = write_architecture(folder / "model.gguf", architecture)
            found[name] = compared(path)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
