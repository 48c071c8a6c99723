"""Compares the logits of a converted file with those of transformers, on the checkpoints of make_checkpoints.py.

    python tests/optin/convert_logits.py CHECKPOINTS PYTHON_WITH_TORCH [NAME...]

Files are written in F32 so that only arithmetic differs. Results: log-archive.md, convert.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from quantize.convert.folder import ConvertRequest, convert
from quantize.native.reference import ReferenceModel

TOKENS = 96


def main(checkpoints: Path, python: str, names: list[str]) -> int:
    failed = 0
    for folder in sorted(p for p in checkpoints.iterdir() if p.is_dir() and (not names or p.name in names)):
        with TemporaryDirectory() as scratch:
            path, ids, out = (Path(scratch) / n for n in ("model.gguf", "ids.json", "logits.npy"))
            convert(ConvertRequest(folder=folder, out=path, float_type="F32"), lambda *_: None)
            tokens = np.random.default_rng(1).integers(10, 1000, TOKENS)
            ids.write_text(json.dumps(tokens.tolist()))
            script = str(Path(__file__).with_name("make_logits.py"))
            subprocess.run([python, script, str(folder), str(ids), str(out)], check=True, capture_output=True)
            want = np.load(out)
            with ReferenceModel(path, window=TOKENS, batch_windows=1, threads=1) as model:
                got = model.run(tokens[None].astype(np.int32), np.ones(TOKENS, np.bool_))[0]
            error = float(np.abs(got - want[:, : got.shape[1]]).max())
            same = float((got.argmax(-1) == want[:, : got.shape[1]].argmax(-1)).mean())
            spread = float(want.std())
            bad = error > 0.02 * spread
            failed += bad
            print(
                f"{folder.name}: largest difference {error:.2g} of a spread of {spread:.2g}, same top {same:.1%}",
                "BAD" * bad,
            )
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
