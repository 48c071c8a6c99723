"""The converter of a folder, what llama.cpp's may get, and the locks of its environment."""

import json
import re
import shutil
from pathlib import Path

import pytest

from engine.library.converter import environment
from quantize.child import described, rebuilt
from quantize.convert.checkpoint import Checkpoint
from quantize.convert.families import SUPPORTED, architecture
from quantize.convert.llama_cpp import ASSETS, architectures_in, stage, supported_architectures
from quantize.errors import BadFile, ConverterNeeded, RefusedFormat, UnsupportedModel

ROOT = Path(__file__).resolve().parents[4]
SPARK_HF = ROOT / "tests" / "data" / "spark-hf"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(SPARK_HF, tmp_path / "model"))


def called(folder, name, **more):
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [name]} | more))
    return folder


def test_the_table_of_a_converter_is_read_without_running_it():
    source = 'raise SystemExit\nTEXT_MODEL_MAP: dict[str, str] = {"B": "b", "A": "a"}\n'
    assert architectures_in(source) == ("A", "B")
    for other in ("x = 1", "TEXT_MODEL_MAP: dict = {1: 2}", "TEXT_MODEL_MAP: dict"):
        with pytest.raises(ValueError, match="TEXT_MODEL_MAP"):
            architectures_in(other)


def test_it_knows_every_family_of_ours_and_many_more():
    assert {
        "GraniteForCausalLM",
        "Olmo2ForCausalLM",
        "CohereForCausalLM",
        "FalconForCausalLM",
    } <= supported_architectures()
    assert len(supported_architectures()) > 200


def test_ours_is_preferred_then_theirs_then_a_refusal_with_the_name(folder):
    assert architecture(Checkpoint(folder)) in SUPPORTED
    with pytest.raises(ConverterNeeded, match="GraniteForCausalLM is not supported by Tessera") as needed:
        architecture(Checkpoint(called(folder, "GraniteForCausalLM")))
    with pytest.raises(UnsupportedModel, match="'NobodyForCausalLM'") as refused:
        architecture(Checkpoint(called(folder, "NobodyForCausalLM")))
    assert refused.value.code == "unsupported_model"
    again = rebuilt(described(needed.value))
    assert isinstance(again, ConverterNeeded)
    assert again.architecture == "GraniteForCausalLM"


def test_programs_and_pickles_stay_behind(folder, tmp_path):
    called(folder, "GraniteForCausalLM", auto_map={"AutoConfig": "evil.Config"})
    for name in ("modeling_evil.py", "weights.bin", "picture.png"):
        (folder / name).write_text("import os")
    staged = stage(folder, tmp_path / "staged")
    assert not {p.name for p in staged.folder.iterdir()} & {"modeling_evil.py", "weights.bin", "picture.png"}
    assert "auto_map" not in json.loads((staged.folder / "config.json").read_bytes())
    assert (staged.folder / "model.safetensors").resolve() == (folder / "model.safetensors").resolve()
    assert any("modeling_evil.py was not run" in note for note in staged.notes)
    assert any("config.json names a program" in note for note in staged.notes)
    assert "auto_map" in json.loads((folder / "config.json").read_bytes()), "the source is only read"


def test_a_tokenizer_that_is_a_program_is_refused(folder, tmp_path):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.T", None]}}))
    with pytest.raises(UnsupportedModel, match="tokenizer is a program"):
        stage(folder, tmp_path / "staged")


def test_links_out_of_the_folder_and_pickled_weights_are_refused(folder, tmp_path):
    (tmp_path / "secret.json").write_text("{}")
    (folder / "added.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(BadFile, match="leads out"):
        stage(folder, tmp_path / "staged")
    (folder / "added.json").unlink()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(RefusedFormat):
        stage(folder, tmp_path / "again")


def test_the_locks_hold_hashes_and_no_addresses():
    packages = (ASSETS / "packages.txt").read_text(encoding="ascii")
    assert "://" not in packages
    assert "-url" not in packages
    found = environment.requirements(packages)
    names = [one.split("==")[0] for one in found]
    assert {"torch", "transformers", "sentencepiece", "numpy", "safetensors", "protobuf"} <= set(names)
    assert not [name for name in names if name.startswith(("nvidia", "cuda", "triton"))], (
        "the processor's torch only"
    )
    for one in found:
        assert re.match(
            r"[a-z0-9-]+==[0-9][0-9a-z.+]*( ; [^\\]+)? \\\n( {4}--hash=sha256:[0-9a-f]{64}( \\)?\n)+$", one
        ), one
    linux = next(one for one in found if one.startswith("torch") and "== 'linux'" in one)
    assert linux.startswith("torch==2.13.0+cpu ;")


def test_the_archive_is_the_one_that_the_runner_is_built_from():
    assert (ASSETS / "source.txt").read_text() == (ROOT / "installers" / "lock" / "llama.txt").read_text()
    assert f"llama-cpp-python=={environment.VERSION}" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_index_of_the_processors_torch_is_read_from_llama_cpps_own_list():
    given = "-r ./other.txt\n--extra-index-url https://wheels.example/cpu\n\ntorch==2.11.0\n"
    assert environment.archive_index(given) == ("--extra-index-url", "https://wheels.example/cpu")
    assert environment.archive_index("torch==2.11.0\n") == ()
    assert environment.archive_index("--extra-index-url http://plain.example/cpu\n") == ()
