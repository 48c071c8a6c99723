"""Folders whose JSON files have arbitrary values in any place are refused with a reason, never by an accident."""

import contextlib
import json
import random
import shutil
from pathlib import Path

import pytest

from devices.errors import TesseraError
from quantize.convert.folder import ConvertRequest, prepare
from quantize.errors import UnsupportedModel

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
        request = ConvertRequest(folder=folder, out=tmp_path / "out.gguf")
        with contextlib.suppress(TesseraError):
            prepare(request, lambda *_: None)


@pytest.mark.native
def test_a_folder_of_the_hub_cache_is_converted(tmp_path):
    """Its files are links to the blobs of the repository."""
    repository = tmp_path / "models--a--b"
    shutil.copytree(SPARK_HF, repository / "blobs")
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    for file in (repository / "blobs").iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    linked = prepare(ConvertRequest(folder=snapshot, out=tmp_path / "a.gguf", header_only=True), lambda *_: None)
    plain = prepare(ConvertRequest(folder=SPARK_HF, out=tmp_path / "b.gguf", header_only=True), lambda *_: None)
    assert linked.spec == plain.spec


def test_a_folder_without_an_architecture_says_so(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(SPARK_HF, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UnsupportedModel, match="names no architecture"):
        prepare(ConvertRequest(folder=folder, out=tmp_path / "a.gguf"), lambda *_: None)
