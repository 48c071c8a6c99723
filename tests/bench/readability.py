"""How readable docs, docstrings and comments are: sentence lengths, homemade words, and a random sample.

Run: python tests/bench/readability.py [COMMIT ...] for the figures of commits (default: HEAD), or with
`--sample 100` for comments and docstrings drawn with the hash of HEAD as the seed, to be judged by a reader.
"""

import argparse
import ast
import io
import random
import re
import statistics
import subprocess
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("app/", "devices/", "engine/", "installers/", "quantize/")
WORDS = (
    "beside", "kept", "told", "said", "asked", "so that", "anew", "mend", "the way there", "over there",
    "what is left", "ours", "our own",
)  # fmt: skip
# Sentences of at least this many words are counted; shorter ones are headings and labels.
SHORTEST = 3


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def files(commit, suffix):
    """Path and text of the files of a commit that end in `suffix`, in the order of their paths."""
    for path in sorted(git("ls-tree", "-r", "--name-only", commit).split("\n")):
        if path.endswith(suffix):
            yield path, git("show", f"{commit}:{path}")


def prose(markdown):
    """The sentences of a page, without code, tables, headings and links' addresses."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", markdown, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    blocks, block = [], []
    for line in [*text.splitlines(), ""]:
        plain = line.strip()
        if not plain or re.match(r"[#|]|[-*+] |\d+\. |!\[", plain):
            blocks.append(" ".join(block))
            block = []
        if plain and not re.match(r"[#|]|!\[", plain):
            block.append(re.sub(r"^([-*+]|\d+\.) ", "", plain))
    return [sentence for block in blocks for sentence in sentences(block)]


def sentences(text):
    return [part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'`*(\[])", text) if len(part.split()) >= SHORTEST]


def remarks(commit):
    """Position and text of each docstring and comment of the packages; adjacent comment lines are joined."""
    for path, text in files(commit, ".py"):
        if path.startswith(PACKAGES):
            yield from remarks_of(path, text)


def remarks_of(path, text):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        (path, node.body[0].lineno, docstring)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node))
    ]
    last = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|fmt:|pragma|!)", token.string):
            words = token.string.lstrip("# ")
            if last and last[1] == token.start[0] - 1 and last[2] == token.start[1]:
                found[-1] = (path, found[-1][1], f"{found[-1][2]} {words}")
            else:
                found.append((path, token.start[0], words))
            last = (path, *token.start)
    return sorted(found)


def figures(name, found, text):
    lengths = [len(sentence.split()) for sentence in found]
    long = sum(length > 25 for length in lengths) / len(lengths)
    print(f"{name}: {len(found)} sentences, median {statistics.median(lengths):g} words, {long:.1%} over 25 words")
    counts = {word: len(re.findall(rf"\b{word}\b", text, re.IGNORECASE)) for word in WORDS}
    print("  " + ", ".join(f"{word} {count}" for word, count in counts.items()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("commits", nargs="*", default=["HEAD"])
    parser.add_argument("--sample", type=int, help="draw so many comments and docstrings of HEAD")
    given = parser.parse_args()
    if given.sample:
        seed = int(git("rev-parse", "HEAD"), 16)
        for number, (path, line, text) in enumerate(
            random.Random(seed).sample(list(remarks("HEAD")), given.sample), 1
        ):
            print(f"{number} {path}:{line}\n{text}\n")
        return
    for commit in given.commits:
        print(commit)
        pages = [
            text
            for path, text in files(commit, ".md")
            if path.startswith("docs/") and "/adr/" not in path and path != "docs/log.md"
        ]
        figures("docs", [sentence for page in pages for sentence in prose(page)], "\n".join(pages))
        notes = [text for *_, text in remarks(commit)]
        figures(
            "docstrings and comments",
            [s for note in notes for s in sentences(" ".join(note.split()))],
            "\n".join(notes),
        )


if __name__ == "__main__":
    main()
