"""The user's settings for models are in one file, which imports the six files of earlier versions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.core.errors import InputFault
from engine.placement.history import PlacementHistory
from engine.placement.model_settings import ModelSettingsStore, Preset, open_model_settings
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.placement.types import LoadOptions, ModelSettings, PlacementLimits
from engine.runner.engine_args import EngineArgs
from tests.support.fakes.scripted import home_paths

LOAD = {"n_ctx": 4096, "n_gpu_layers": -1, "n_threads": 3, "n_parallel": 2, "kv_type": "q8_0", "keep_loaded": True}
EARLIER = {
    "config/aliases.json": {"gpt-4o": "spark", "claude-*": "other"},
    "config/drafts.json": {"spark": "tiny"},
    "config/sampling.json": {"spark": {"temperature": 0.25, "top_k": 3}},
    "config/load.json": {"version": 1, "data": {"spark": LOAD, "other": {"n_ctx": 512}}},
    "config/engine_args.json": {"spark": {"repack": False, "ctx_size": 2048}},
    "state/dispatch.json": {"pins": {"spark": "gpu0/vulkan", "bad": 3}, "ladders": {"spark": {"n_ubatch": 128}}},
}


def earlier(home: Path) -> None:
    for name, value in EARLIER.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value))


def check_all(store: ModelSettingsStore) -> None:
    assert store.get("spark") == ModelSettings(
        n_ctx=4096,
        n_gpu_layers=-1,
        n_threads=3,
        n_parallel=2,
        type_k="q8_0",
        keep_loaded=True,
        device="gpu0/vulkan",
        draft="tiny",
        engine_args=EngineArgs(repack=False, n_ctx=2048),
        sampling={"temperature": 0.25, "top_k": 3},
    )
    assert store.get("other") == ModelSettings(n_ctx=512)
    assert store.aliases() == {"gpt-4o": "spark", "claude-*": "other"}


def test_six_files_become_one_and_are_set_aside(tmp_path):
    earlier(tmp_path)
    paths = home_paths(tmp_path)
    check_all(open_model_settings(paths))
    check_all(open_model_settings(paths))
    aside = sorted(f.name for f in paths.config.iterdir() if f.suffix == ".migrated")
    assert aside == sorted(f"{Path(name).name}.migrated" for name in EARLIER if name.startswith("config/"))
    assert PlacementHistory(paths.state / "dispatch.json").remembered("spark") == {"n_ubatch": 128}
    assert "pins" not in json.loads((paths.state / "dispatch.json").read_text())["data"]


def test_what_was_taken_back_does_not_return_with_the_file_gone(tmp_path):
    earlier(tmp_path)
    paths = home_paths(tmp_path)
    open_model_settings(paths).get("spark")
    (paths.config / "model_settings.json").unlink()
    assert open_model_settings(paths).get("spark") == ModelSettings()


KILLED = """
import os, sys
from pathlib import Path
from engine.placement.model_settings import open_model_settings
from tests.support.fakes.scripted import home_paths

calls = 0
def ends_at(last, old):
    def after(*args, **given):
        global calls
        calls += 1
        if calls == last:
            os._exit(9)
        return old(*args, **given)
    return after

for at, home in enumerate(sys.argv[1:], 1):
    child = os.fork()
    if child == 0:
        os.replace = ends_at(at, os.replace)
        open_model_settings(home_paths(Path(home))).get("spark")
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="children are forks")
def test_a_crash_at_any_rename_of_the_migration_loses_nothing(tmp_path):
    """One process ends at the first rename, another at the second, and so on."""
    homes = [tmp_path / str(at) for at in range(9)]
    for home in homes:
        earlier(home)
    command = [sys.executable, "-c", KILLED, *map(str, homes)]
    ended = subprocess.run(command, check=True, capture_output=True, cwd=Path.cwd()).stdout.split()
    assert ended[:6] == [b"9"] * 6
    assert ended[-1] == b"0", "the last process had fewer renames to make"
    for home in homes:
        check_all(open_model_settings(home_paths(home)))


def test_a_history_that_is_saved_first_does_not_lose_the_pins(tmp_path):
    earlier(tmp_path)
    paths = home_paths(tmp_path)
    PlacementHistory(paths.state / "dispatch.json").record_speed("gpu0", "vulkan", 10**9, 20.0)
    check_all(open_model_settings(paths))


def test_a_file_that_cannot_be_read_now_is_migrated_later(tmp_path, monkeypatch):
    earlier(tmp_path)
    paths = home_paths(tmp_path)
    usual = Path.read_bytes

    def exhausted(path: Path) -> bytes:
        if path.name == "sampling.json":
            raise OSError(24, "Too many open files", str(path))
        return usual(path)

    store = open_model_settings(paths)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", exhausted)
        assert store.get("spark") == ModelSettings()
        with pytest.raises(OSError, match="Too many open files"):
            store.change("spark", n_ctx=1024)
    check_all(store)


def test_a_damaged_file_costs_itself_only_and_stays(tmp_path):
    earlier(tmp_path)
    paths = home_paths(tmp_path)
    (paths.config / "load.json").write_text("{ damaged")
    store = open_model_settings(paths)
    assert store.get("spark").draft == "tiny"
    assert store.get("spark").n_ctx is None
    assert (paths.config / "load.json").read_text() == "{ damaged"


def test_a_damaged_or_newer_field_costs_that_field_only(tmp_path):
    file = tmp_path / "f"
    row = {"n_ctx": "many", "n_threads": 2, "of_a_newer_program": [1]}
    file.write_text(
        json.dumps({"version": 1, "data": {"models": {"m": row, "bad": 3}, "aliases": {"a": 1, "b": "m"}}})
    )
    store = ModelSettingsStore(file)
    assert store.get("m") == ModelSettings(n_threads=2)
    assert store.get("bad") == ModelSettings()
    assert store.aliases() == {"b": "m"}
    store.change("m", n_threads=None, draft="tiny")
    assert json.loads(file.read_text())["data"]["models"]["m"] == {
        "n_ctx": "many",
        "of_a_newer_program": [1],
        "draft": "tiny",
    }


def test_options_of_loads_replace_each_other_and_leave_the_rest(tmp_path):
    store = ModelSettingsStore(tmp_path / "f")
    store.change("m", device="cpu", draft="tiny", sampling={"top_k": 3})
    store.set_load("m", LoadOptions(n_ctx=512, type_k="q8_0"))
    store.set_load("m", LoadOptions(n_threads=2))
    assert store.get("m") == ModelSettings(device="cpu", draft="tiny", sampling={"top_k": 3}, n_threads=2)
    with pytest.raises(InputFault, match="is not a KV cache type"):
        store.set_load("m", LoadOptions(type_k="q9"))
    with pytest.raises(InputFault, match="was trained for 512 tokens"):
        store.set_load("m", LoadOptions(n_ctx=513), context_train=512)


def test_what_is_wanted_and_what_is_loaded_can_be_compared():
    loaded = ModelSettings(n_ctx=512, keep_loaded=True, sampling={"top_k": 3})
    assert ModelSettings(n_ctx=512).pending(loaded) == ()
    assert ModelSettings(n_ctx=1024, device="cpu").pending(loaded) == ("n_ctx", "device")


def test_a_pin_is_a_setting_and_forgets_what_an_earlier_place_had_to_give_up(tmp_path):
    placer = Placer(open_resources(home_paths(tmp_path)))
    placer.history.remember("m", {"n_gpu_layers": 0})
    placer.pin("m", "gpu0/vulkan")
    assert placer.resources.settings.get("m").device == "gpu0/vulkan"
    assert placer.history.remembered("m") == {}
    placer.pin("m", None)
    assert open_resources(home_paths(tmp_path)).settings.get("m").device is None


def test_options_of_a_model_come_before_those_of_the_server():
    server = PlacementLimits(n_parallel=8, type_k="q8_0", mode="quiet")
    found = server.with_options(ModelSettings(n_parallel=2, n_ctx=512, device="cpu"))
    assert found == PlacementLimits(n_parallel=2, n_ctx=512, type_k="q8_0", mode="quiet")


@pytest.mark.parametrize(
    ("options", "stop", "max_tokens"),
    [
        ({}, (), None),
        ({"stop": "END", "num_predict": 9}, ("END",), 9),
        ({"stop": ["a", "b"], "num_predict": -1}, ("a", "b"), None),
    ],
)
def test_an_alias_bounds_an_answer_as_ollama_would(options, stop, max_tokens):
    preset = Preset(options=options)
    assert (preset.stop, preset.max_tokens) == (stop, max_tokens)
