"""Counts right passages among the first five, for Tessera's search and an ordinary stack, on the same 42 questions.

    python tests/bench/documents_against_stack.py CORPUS --embedding FILE.gguf --weights FOLDER

CORPUS holds folders of documents: `python`, `git`, `postgres` (HTML manuals), `debian` and `postfix` (text), `pdf`,
`docx` and `epub` (SQLite, Exim and the Developer's Reference), `mail`, `tables`; from the documentation packages of
Debian 12. FOLDER has the same embedding model as model.onnx with tokenizer.json. The ordinary stack cuts 500 tokens
with 50 of overlap, ranks by BM25 with Snowball stems and by cosine, and fuses both by reciprocal rank (k 60). It
needs bm25s, PyStemmer, beautifulsoup4, pymupdf and python-pptx. A passage is right if it is from the right document
and holds the words of the answer; a question on two documents needs a passage of each. With --server, a server
that runs is asked, which may have the collection "bench" already.
"""

import argparse
import email
import email.policy
import json
import mailbox
import re
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx2
import numpy as np

from tests.bench.recording import record
from tests.support.servers import RunningServer

QUESTIONS = [
    json.loads(line)
    for line in (Path(__file__).parent / "documents" / "stack_questions.jsonl").read_text("utf-8").splitlines()
]
FIRST = 5
TOKENS, OVERLAP = 500, 50
READ_TOKENS = 256  # the model's training data
CANDIDATES, RRF = 50, 60


def right(question, passages):
    """`passages`: pairs of the document's path in the corpus and the text."""
    flat = [(path, " ".join(text.split())) for path, text in passages]
    return all(any(re.search(doc, p) and re.search(words, t) for p, t in flat) for doc, words in question["wanted"])


def html_text(raw):
    from bs4 import BeautifulSoup

    tree = BeautifulSoup(raw, "lxml")
    for tag in tree(["script", "style"]):
        tag.decompose()
    return tree.get_text(" ")


def mail_text(message):
    body = message.get_body(("plain", "html"))
    try:
        text = body.get_content() if body else str(message.get_payload())
    except (LookupError, ValueError, AttributeError):
        text = str(message.get_payload())
    return "\n".join([*(str(message.get(name, "")) for name in ("Subject", "From", "Date")), text])


def sheets(path):
    from openpyxl import load_workbook

    for sheet in load_workbook(path):
        rows = sheet.iter_rows(values_only=True)
        yield "\n".join(" ".join(str(cell) for cell in row if cell is not None) for row in rows)


def word_text(path):
    import docx

    document = docx.Document(str(path))
    rows = [" | ".join(cell.text for cell in row.cells) for table in document.tables for row in table.rows]
    return "\n".join([*(p.text for p in document.paragraphs), *rows])


def texts(path):  # noqa: PLR0911 - one return for each format
    """The plain texts of a file, page by page where it has pages."""
    kind = path.suffix
    if kind == ".pdf":
        import fitz

        return [page.get_text() for page in fitz.open(path)]
    if kind == ".html":
        return [html_text(path.read_bytes())]
    if kind == ".docx":
        return [word_text(path)]
    if kind == ".epub":
        book = zipfile.ZipFile(path)
        return ["\n".join(html_text(book.read(n)) for n in book.namelist() if n.endswith(("html", "htm")))]
    if kind == ".pptx":
        from pptx import Presentation

        slides = Presentation(str(path)).slides
        return ["\n".join(s.text_frame.text for s in slide.shapes if s.has_text_frame) for slide in slides]
    if kind == ".xlsx":
        return list(sheets(path))
    if kind == ".mbox":
        read = lambda file: email.message_from_binary_file(file, policy=email.policy.default)
        return [mail_text(message) for message in mailbox.mbox(str(path), factory=read)]
    if kind == ".eml":
        return [mail_text(email.message_from_bytes(path.read_bytes(), policy=email.policy.default))]
    return [path.read_text("utf-8", "replace")]


class Stack:
    """The ordinary stack."""

    def __init__(self, corpus, weights):
        import bm25s
        import onnxruntime
        import Stemmer
        from tokenizers import Tokenizer

        self._tokens = Tokenizer.from_file(str(weights / "tokenizer.json"))
        self._tokens.no_truncation()
        self._tokens.no_padding()
        self._model = onnxruntime.InferenceSession(str(weights / "model.onnx"))
        self._stem = Stemmer.Stemmer("english")
        self._bm25s = bm25s
        self.chunks = []
        for path in sorted(p for p in corpus.rglob("*") if p.is_file()):
            for text in texts(path):
                self._cut(str(path.relative_to(corpus)), " ".join(text.split()))
        self._words = bm25s.BM25()
        self._words.index(self._terms([text for _, text in self.chunks]), show_progress=False)
        self._vectors = np.array([self._vector(text) for _, text in self.chunks], np.float32)

    def _cut(self, name, text):
        places = self._tokens.encode(text, add_special_tokens=False).offsets
        for first in range(0, len(places), TOKENS - OVERLAP):
            part = places[first : first + TOKENS]
            self.chunks.append((name, text[part[0][0] : part[-1][1]]))
            if first + TOKENS >= len(places):
                break

    def _terms(self, rows):
        return self._bm25s.tokenize(rows, stopwords="en", stemmer=self._stem, show_progress=False)

    def _vector(self, text):
        ids = np.array([self._tokens.encode(text).ids[:READ_TOKENS]], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        inputs = {each.name: given[each.name] for each in self._model.get_inputs()}
        mean = self._model.run(None, inputs)[0][0].mean(0)
        return mean / np.linalg.norm(mean)

    def search(self, question):
        words = self._words.retrieve(self._terms([question]), k=CANDIDATES, show_progress=False)[0][0]
        meaning = np.argsort(-(self._vectors @ self._vector(question)))[:CANDIDATES]
        scores = Counter()
        for ranking in (words, meaning):
            for rank, place in enumerate(ranking):
                scores[int(place)] += 1 / (RRF + rank)
        return [self.chunks[place] for place, _ in scores.most_common(FIRST)]


class Tessera:
    """A collection named bench on a server."""

    def __init__(self, url, token, corpus):
        self._corpus = corpus
        self._http = httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=600)
        known = self._http.get("/tessera/v1/collections").json()["collections"]
        if not any(c["name"] == "bench" for c in known):
            body = {"name": "bench", "sources": [str(corpus)]}
            self._http.post("/tessera/v1/collections", json=body).raise_for_status()
        while True:
            state = self._http.get("/tessera/v1/collections/bench").json()
            if state["state"] == "ready":
                break
            time.sleep(2)

    def search(self, question):
        body = {"query": question, "limit": FIRST}
        answer = self._http.post("/tessera/v1/collections/bench/search", json=body).json()
        rows = [(p["path"], f"{p['heading']} {p['text']}") for p in answer["passages"]]
        return [(str(Path(path).relative_to(self._corpus)), text) for path, text in rows], answer["found"]


def tell(name, found):
    total, hits = Counter(), Counter()
    for kind, hit in found:
        total[kind] += 1
        hits[kind] += hit
    print(f"| {name} | " + " | ".join(f"{kind} {hits[kind]} of {total[kind]}" for kind in total), end="")
    print(f" | all {sum(hits.values())} of {sum(total.values())} |")
    for kind in total:
        record(
            "documents_against_stack", "right passage in five", hits[kind], f"of {total[kind]}", way=name, kind=kind
        )
    every = sum(total.values())
    record(
        "documents_against_stack", "right passage in five", sum(hits.values()), f"of {every}", way=name, kind="all"
    )


def measure(tessera, stack):
    answerable = [q for q in QUESTIONS if q["wanted"]]
    answers = [(q, *tessera.search(q["question"])) for q in QUESTIONS]
    tell("Tessera", [(q["kind"], right(q, passages)) for q, passages, _ in answers if q["wanted"]])
    weak = sum(not found for q, _, found in answers if q["wanted"])
    silent = sum(found for q, _, found in answers if not q["wanted"])
    print(f"called weak although answerable: {weak}; not called weak although not there: {silent}")
    record("documents_against_stack", "called weak, answerable", weak, f"of {len(answerable)}")
    record(
        "documents_against_stack", "not called weak, no answer", silent, f"of {len(QUESTIONS) - len(answerable)}"
    )
    if stack is not None:
        tell("ordinary stack", [(q["kind"], right(q, stack.search(q["question"]))) for q in answerable])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--embedding", type=Path, help="GGUF file")
    parser.add_argument("--weights", type=Path, help="the same model for the ordinary stack; without: Tessera only")
    parser.add_argument("--server", nargs=2, metavar=("URL", "TOKEN"))
    options = parser.parse_args()
    corpus = options.corpus.resolve()
    stack = Stack(corpus, options.weights) if options.weights else None
    if options.server:
        measure(Tessera(*options.server, corpus), stack)
        return
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        (home / "models").mkdir()
        (home / "models" / options.embedding.name).symlink_to(options.embedding.resolve())
        server = RunningServer(home)
        try:
            measure(Tessera(server.url, server.token, corpus), stack)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
