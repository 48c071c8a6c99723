"""The product's source files for tests that search them. Parsing all takes seconds, so text is tried first."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("app", "devices", "engine", "quantize")


@functools.cache
def texts(package: str) -> dict[Path, str]:
    """The text of each file of a package."""
    return {path: path.read_text("utf-8") for path in sorted((ROOT / package).rglob("*.py"))}


def parsed(pattern: str, packages: tuple[str, ...] = PRODUCT) -> Iterator[tuple[Path, ast.Module]]:
    """The syntax trees of files whose text matches `pattern`, which must match wherever the search can succeed."""
    condition = re.compile(pattern, re.MULTILINE)
    for package in packages:
        for path, text in texts(package).items():
            if condition.search(text):
                yield path, ast.parse(text)
