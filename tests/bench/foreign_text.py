"""Makes an evaluation text from sources that the calibration text does not use: equal parts, in random order.

Usage: python tests/bench/foreign_text.py OUT [--characters 400000] [--seed 1] SOURCE...
Each SOURCE is a file or folder: plain text, .json with a "text", manual pages (.gz, troff; written out by man). A
source's files are taken in the order of their names.
"""

import argparse
import gzip
import json
import random
import subprocess
from pathlib import Path

PIECE = 4000  # characters


def text_of(path: Path) -> str:
    """What one file says. A page of manual is written out as a reader sees it."""
    if path.suffix == ".gz":
        raw = gzip.decompress(path.read_bytes())
        command = ["man", "--warnings=!", "-E", "UTF-8", "-l", "-"]
        shown = subprocess.run(command, input=raw, capture_output=True, check=True)
        return shown.stdout.decode("utf-8", "replace")
    content = path.read_text(encoding="utf-8", errors="replace")
    return str(json.loads(content)["text"]) if path.suffix == ".json" else content


def text_from(source: Path, characters: int) -> str:
    """The first characters of a source."""
    files = sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]
    found = ""
    for path in files:
        if len(found) >= characters:
            break
        found += text_of(path) + "\n"
    return found[:characters]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--characters", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    texts = [text_from(s, args.characters // len(args.sources)) for s in args.sources]
    pieces = [t[i : i + PIECE] for t in texts for i in range(0, len(t), PIECE)]
    random.Random(args.seed).shuffle(pieces)
    args.out.write_text("\n".join(pieces), encoding="utf-8")
    for source, text in zip(args.sources, texts, strict=True):
        print(f"{source}: {len(text)} characters")


if __name__ == "__main__":
    main()
