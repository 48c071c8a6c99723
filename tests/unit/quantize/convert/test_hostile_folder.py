"""Folders whose JSON files have arbitrary values in any place are refused with a reason, never by an accident."""

import contextlib
import json
import random
import shutil
from pathlib import Path

import pytest

from devices.errors import TesseraError
from quantize.convert.folder import ConvertRequest, prepare

SPARK_HF = Path(__file__).resolve().parents[3] / "data" / "spark-hf"
HOSTILE = [None, True, -1, 0, 2**64, 1e308, float("nan"), "", "\ud800", "x" * 1000, [], {}, [[]], {"a": {}}, [None]]
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def places(value, path=()):
    """Every place in a JSON value, but not all of a long list or table."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(inner)[:12]:
        yield from places(item, (*path, key))


def put(value, path, what):
    if not path:
        return what
    at = value
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = what
    return value


@pytest.mark.native
@pytest.mark.parametrize("name", FILES)
def test_anything_anywhere(tmp_path, name):
    folder = tmp_path / "model"
    shutil.copytree(SPARK_HF, folder)
    file = folder / name
    if not file.exists():
        pytest.skip(f"the test's folder has no {name}")
    text = file.read_text(encoding="utf-8")
    picks = random.Random(name)
    tried = [(path, what) for path in places(json.loads(text)) for what in HOSTILE]
    for path, what in picks.sample(tried, min(len(tried), 12)):
        file.write_text(json.dumps(put(json.loads(text), path, what)), encoding="utf-8")
        request = ConvertRequest(folder=folder, root=folder, out=tmp_path / "out.gguf")
        with contextlib.suppress(TesseraError):
            prepare(request, lambda *_: None)
