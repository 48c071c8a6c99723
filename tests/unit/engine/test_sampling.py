"""The origin of sampling parameters: each layer overrides those below it, and neutral values count."""

import json
import shutil
from pathlib import Path

import pytest

from engine.core.errors import InputFault
from engine.core.sampling import LLAMA_CPP, Layer, Recommended, choose, families, of_card, recommended
from engine.library.catalogue import Catalogue
from engine.library.inspect_files import inspect_onnx
from engine.placement.model_settings import ModelSettingsStore
from engine.server.models import ServedModels
from quantize.convert.folder import ConvertRequest, convert
from quantize.files.gguf_split import read_gguf_model
from quantize.files.sampling_keys import BOUNDS, GENERATION_CONFIG_NAMES, checked
from quantize.onnx.folder import convert_gguf

SPARK_HF = Path("tests/data/spark-hf")


def test_nothing_said_is_llama_cpps_default():
    chosen = choose({})
    assert {name: getattr(chosen.params, name) for name in LLAMA_CPP} == dict(LLAMA_CPP)
    assert set(chosen.sources.values()) == {"llama.cpp"}
    assert chosen.params.repeat_penalty == 1


def test_an_explicit_neutral_value_stays_neutral():
    params = choose({"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}).params
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1, 0, 1, 0)


def test_every_layer_wins_over_the_ones_below():
    card = Layer(source="model_card", values={"temperature": 0.6, "min_p": 0.2, "top_k": 5}, link="https://x")
    told = recommended(
        user={"temperature": 0.1},
        file={"temperature": 0.2, "top_p": 0.3},
        publisher={"temperature": 0.4, "top_p": 0.5, "top_k": 7},
        card=(card, card),
        reasons=False,
    )
    chosen = choose({"seed": 3}, told.layers(None))
    assert chosen.facts() == {
        "temperature": {"value": 0.1, "source": "user"},
        "top_k": {"value": 7, "source": "generation_config"},
        "top_p": {"value": 0.3, "source": "file"},
        "min_p": {"value": 0.2, "source": "model_card", "link": "https://x"},
    }
    assert chosen.params.seed == 3
    asked = choose({"temperature": 0.0}, told.layers(None))
    assert asked.facts()["temperature"] == {"value": 0.0, "source": "request"}


def test_reasoning_and_not_reasoning_are_apart():
    plain, thinking = of_card("qwen3", ["Qwen3-8B-Q4_K_M"])
    told = recommended(user={}, file={}, publisher={}, card=(plain, thinking), reasons=True)
    assert choose({}, told.layers(None)).params.temperature == 0.6
    assert choose({}, told.layers(True)).params.top_p == 0.95
    off = choose({}, told.layers(False)).params
    assert (off.temperature, off.top_p, off.top_k, off.min_p) == (0.7, 0.8, 20, 0)
    assert Recommended(plain=(plain,), thinking=(thinking,)).layers(True) == (plain,), "it cannot reason"


@pytest.mark.parametrize(
    ("architecture", "name", "temperature"),
    [
        ("qwen3moe", "Qwen3-Coder-30B-A3B-Instruct", 0.7),
        ("qwen3", "Qwen3-4B-Thinking-2507", 0.6),
        ("qwen3", "DeepSeek-R1-0528-Qwen3-8B", 0.6),
        ("qwen2", "DeepSeek-R1-Distill-Qwen-7B", 0.6),
        ("qwen2", "Qwen2.5-7B-Instruct", 0.7),
        ("gpt-oss", "gpt-oss-20b", 1.0),
        ("llama", "Meta-Llama-3.1-8B-Instruct", 0.6),
        ("llama", "Mistral-Small-3.2-24B-Instruct-2506", 0.15),
        ("lfm2", "LFM2.5-1.2B", 0.1),
        ("lfm2", "LFM2-1.2B", 0.3),
        ("gemma3", "gemma-3-4b-it", 1.0),
        ("llama", "Smollm2 135M 8k Lc100K Mix1 Ep2", None),
        ("llama", "my own", None),
    ],
)
def test_the_family_is_found_by_architecture_and_name(architecture, name, temperature):
    found = of_card(architecture, [name])
    assert (found[0].values["temperature"] if found else None) == temperature


def test_every_row_of_the_table_has_a_source_and_fields_within_bounds():
    same = {name: name for name in BOUNDS}
    for family in families():
        assert family.source.startswith("https://")
        for values in (family.values, family.thinking or {}):
            assert checked(values, same) == values


def test_a_strangers_nonsense_recommends_nothing():
    wild = {"temperature": 99, "top_k": "40", "top_p": float("nan"), "min_p": True, "typical_p": None}
    assert checked({**wild, "repetition_penalty": 1.05}, GENERATION_CONFIG_NAMES) == {"repeat_penalty": 1.05}


@pytest.mark.native
def test_the_publishers_file_beside_a_model_counts_and_is_written_by_the_converter(tmp_path, tessera_home):
    folder = Path(shutil.copytree(SPARK_HF, tmp_path / "m"))
    config = {"temperature": 0.35, "top_k": 11, "repetition_penalty": 1.07, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(config))
    out = tessera_home / "models" / "converted.gguf"
    out.parent.mkdir()
    convert(ConvertRequest(folder=folder, out=out), lambda *_: None)
    metadata = read_gguf_model(out).metadata
    assert metadata["general.sampling.top_k"] == 11
    assert metadata["general.sampling.temp"] == pytest.approx(0.35)
    assert metadata["general.sampling.penalty_repeat"] == pytest.approx(1.07)
    catalogue = Catalogue()
    served = ServedModels(lambda: catalogue)
    chosen = choose({}, served.recommended_for(catalogue.get("converted")).plain)
    assert (chosen.params.temperature, chosen.sources["temperature"]) == (0.35, "file")
    assert chosen.params.repeat_penalty == 1.07
    convert_gguf(out, tmp_path / "onnx")
    told = inspect_onnx(tmp_path / "onnx").publisher_sampling
    assert told == {"temperature": 0.35, "top_k": 11, "repeat_penalty": 1.07}
    entry = catalogue.add(folder)
    chosen = choose({}, served.recommended_for(entry).plain)
    assert (chosen.params.top_k, chosen.sources["top_k"]) == (11, "generation_config")


def test_a_broken_publishers_file_stops_nothing(tmp_path, tessera_home):
    folder = Path(shutil.copytree(SPARK_HF, tmp_path / "m"))
    (folder / "generation_config.json").write_text("{not json")
    assert Catalogue().add(folder).details.publisher_sampling == {}


def test_the_users_values_are_kept_shared_and_checked(tmp_path):
    file = tmp_path / "config" / "model_settings.json"
    one, other = ModelSettingsStore(file), ModelSettingsStore(file)
    one.set_sampling("m", {"temperature": 0.25, "top_k": 3})
    assert other.get("m").sampling == {"temperature": 0.25, "top_k": 3}
    with pytest.raises(InputFault, match="temperature must be a number from 0 to 5, not 9"):
        other.set_sampling("m", {"temperature": 9})
    with pytest.raises(InputFault, match="heat is not known"):
        other.set_sampling("m", {"heat": 1})
    assert one.get("m").sampling["temperature"] == 0.25
    other.set_sampling("m", {})
    assert one.get("m").sampling == {}
    file.write_text("[broken")
    assert one.get("m").sampling == {}
