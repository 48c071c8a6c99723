"""Converts families that only llama.cpp's converter knows, in its real environment, and compares the logits.

    python tests/optin/llama_cpp_door.py FOLDER     needs the package index, 2 GB of disk in FOLDER

Files are written in F32, read by the runner's library and compared with transformers. Results: log-archive.md,
"llama.cpp's own converter".
"""

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from engine.core.paths import user_paths
from engine.jobs.jobs import JobContext
from engine.library.catalogue import Catalogue
from engine.library.converter import environment
from engine.library.converting import convert_folder
from quantize.convert.llama_cpp import architectures_in, supported_architectures
from quantize.native.reference import ReferenceModel

TOKENS = 96
# Of the spread of the logits. Measured: log-archive.md, our own converter's families.
ALLOWED = 0.02


def main(work: Path) -> int:
    work.mkdir(parents=True, exist_ok=True)
    os.environ["TESSERA_HOME"] = str(work / "home")
    started = time.monotonic()
    most = [0]

    def tell(progress):
        most[0] = max(most[0], progress.done)

    made = environment.install(user_paths().converter, JobContext(tell))
    took = time.monotonic() - started
    on_disk = environment.size_on_disk(made.folder)
    print(f"environment: {took:.0f} s, {most[0] / 1e6:.0f} MB fetched, {on_disk / 1e6:.0f} MB on disk", flush=True)
    source = (made.source / "conversion" / "__init__.py").read_text(encoding="utf-8")
    assert set(architectures_in(source)) == supported_architectures(), (
        "assets/converter/architectures.txt is another's"
    )
    checkpoints = work / "checkpoints"
    if not checkpoints.is_dir():
        script = str(Path(__file__).with_name("foreign_checkpoints.py"))
        subprocess.run([made.python, script, str(checkpoints)], check=True)
    failed = 0
    with closing(Catalogue(user_paths())) as catalogue:
        for folder in sorted(p for p in checkpoints.iterdir() if p.is_dir()):
            out = work / f"{folder.name}.gguf"
            out.unlink(missing_ok=True)
            started = time.monotonic()
            _, done = convert_folder(catalogue, folder, out, "F32", JobContext())
            took = time.monotonic() - started
            want = np.load(checkpoints / f"{folder.name}.npy")
            tokens = np.random.default_rng(1).integers(10, 1000, TOKENS)
            with ReferenceModel(out, window=TOKENS, batch_windows=1, threads=1) as model:
                got = model.run(tokens[None].astype(np.int32), np.ones(TOKENS, np.bool_))[0]
            want = want[:, : got.shape[1]]
            error, spread = float(np.abs(got[:, : want.shape[1]] - want).max()), float(want.std())
            same = float((got[:, : want.shape[1]].argmax(-1) == want.argmax(-1)).mean())
            bad = error > ALLOWED * spread
            failed += bad
            facts = f"{done.architecture}, {done.num_tensors} tensors, {took:.1f} s"
            words = f"largest difference {error:.2g} of a spread of {spread:.2g}, same top {same:.1%}"
            print(f"{folder.name} ({facts}): {words}", "BAD" * bad, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
