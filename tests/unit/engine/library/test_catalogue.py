"""The catalogue: what it finds, what it stores, and which files it never opens twice."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from devices import disk_speed
from engine.core.errors import BadModelFile
from engine.core.paths import Paths
from engine.library import catalogue as catalogue_module
from engine.library.catalogue import Catalogue, Store
from engine.library.types import Origin

SPARK_HF = Path("tests/data/spark-hf")


def ids(catalogue):
    return [entry.id for entry in catalogue.entries()]


@pytest.fixture
def reads(monkeypatch):
    """Paths whose headers were read."""
    seen = []
    for kind, reader in list(catalogue_module._READERS.items()):

        def spy(path, reader=reader):
            seen.append(path)
            return reader(path)

        monkeypatch.setitem(catalogue_module._READERS, kind, spy)
    return seen


def test_the_bundled_model_is_there_out_of_the_box(catalogue):
    spark = catalogue.get("spark")
    assert (spark.name, spark.architecture, spark.context_train) == ("Spark (demo)", "llama", 1024)
    assert spark.capabilities == ("completion", "chat", "fim")
    assert spark.details.n_params == 8_392_960
    assert spark.details.quantization == "F16"
    assert spark.origin.kind == "bundled"
    assert spark.state == "online"
    assert "im_start" in spark.chat_template
    assert catalogue.get("Spark (demo)").id == catalogue.get("spark-f16.gguf").id == "spark"
    assert catalogue.get("nothing") is None


def test_what_was_read_once_is_not_read_again(paths, put, gguf, reads):
    for index in range(5):
        put(f"m{index}.gguf", gguf())
    Catalogue(paths).close()
    assert len(reads) == 6
    reads.clear()
    again = Catalogue(paths)
    assert reads == []
    added = put("m9.gguf", gguf())
    assert again.refresh().added == ("m9",)
    assert reads == [added]
    assert ids(again) == ["m0", "m1", "m2", "m3", "m4", "m9", "spark"]


def test_a_changed_file_is_read_again_and_keeps_its_id(catalogue, put, gguf):
    path = put("m.gguf", gguf(numbers={"llama.context_length": 10}))
    catalogue.refresh()
    path.write_bytes(gguf(numbers={"llama.context_length": 20, "llama.block_count": 1}))
    assert catalogue.get("m").state == "changed"
    assert catalogue.refresh().changed == ("m",)
    assert (catalogue.get("m").context_train, catalogue.get("m").state) == (20, "online")


def test_a_folder_that_was_moved_shows_as_missing_or_offline_and_comes_back(
    catalogue, tmp_path, gguf, reads, monkeypatch
):
    drive = tmp_path / "drive"
    drive.mkdir()
    (drive / "far.gguf").write_bytes(gguf())
    catalogue.store.watch(str(drive), None)
    catalogue.refresh()
    reads.clear()
    drive.rename(tmp_path / "unplugged")
    assert catalogue.refresh() == catalogue_module.Changes()
    assert catalogue.get("far").state == "missing"
    monkeypatch.setattr(disk_speed, "_DRIVES", (tmp_path.parent,))  # as if no drive were mounted there
    assert catalogue.get("far").state == "offline"
    (tmp_path / "unplugged").rename(drive)
    assert catalogue.get("far").state == "online"
    catalogue.refresh()
    assert reads == []


def test_a_mount_above_the_place_of_drives_is_no_drive(monkeypatch):
    """/run is a file system of its own, and so is /tmp on many systems."""
    mounts = {Path("/"), Path("/run")}
    monkeypatch.setattr(os.path, "ismount", lambda path: path in mounts)
    file = Path("/run/media/ann/disk/far.gguf")
    assert not disk_speed.drive_is_here(file)
    mounts.add(file.parent)
    assert disk_speed.drive_is_here(file)


def _renamed(models):
    (models / "old.gguf").rename(models / "new.gguf")


def _into_a_folder(models):
    (models / "deeper").mkdir()
    (models / "old.gguf").rename(models / "deeper" / "old.gguf")


def _copied_with_new_times(models):
    (models / "deeper").mkdir()
    shutil.copyfile(models / "old.gguf", models / "deeper" / "old.gguf")
    (models / "old.gguf").unlink()


@pytest.mark.parametrize("move", [_renamed, _into_a_folder, _copied_with_new_times])
def test_a_moved_file_is_the_same_model_in_another_place(catalogue, put, gguf, paths, move):
    """It keeps its id and the user's name for it, and is listed once."""
    put("old.gguf", gguf())
    put("other.gguf", gguf(numbers={"llama.context_length": 10}))
    catalogue.refresh()
    catalogue.rename("old", "My model")
    added_at = catalogue.get("old").added_at
    move(paths.models)
    assert catalogue.refresh() == catalogue_module.Changes(moved=("old",))
    assert ids(catalogue) == ["old", "other", "spark"]
    found = catalogue.get("old")
    assert (found.name, found.added_at, found.state) == ("My model", added_at, "online")


def test_a_moved_home_lists_each_model_once(tmp_path, gguf):
    def opened(home):
        return Catalogue(Paths(*(home / name for name in ("config", "models", "state", "cache", "logs"))))

    first = tmp_path / "first"
    (first / "models" / "local").mkdir(parents=True)
    (first / "models" / "local" / "mine.gguf").write_bytes(gguf())
    shutil.copytree(SPARK_HF, first / "models" / "spark-hf")
    before = opened(first)
    listed = ids(before)
    before.close()
    first.rename(tmp_path / "second")
    after = opened(tmp_path / "second")
    assert ids(after) == listed
    assert {entry.state for entry in after.entries()} == {"online"}
    after.close()


def test_a_copy_or_another_model_of_the_same_name_is_a_model_of_its_own(catalogue, put, gguf, paths):
    path = put("one.gguf", gguf())
    catalogue.refresh()
    shutil.copy2(path, paths.models / "two.gguf")  # the first is still there
    assert catalogue.refresh().added == ("two",)
    path.unlink()
    put("deeper/one.gguf", gguf(numbers={"llama.context_length": 10}))
    assert catalogue.refresh().added == ("one-2",)
    assert catalogue.get("one").state == "missing"


def test_a_located_model_keeps_its_id_and_one_that_came_back_keeps_its_file(catalogue, put, gguf, tmp_path):
    """The second part lost the file before: it was moved to the trash as the file of a model without one."""
    path = put("wanderer.gguf", gguf())
    catalogue.refresh()
    path.unlink()
    other = tmp_path / "elsewhere.gguf"
    other.write_bytes(gguf(numbers={"llama.context_length": 10}))
    assert catalogue.relocate("wanderer", other).id == "wanderer"
    found = catalogue.get("wanderer")
    assert (found.path, found.origin.kind, found.state) == (other, "linked", "online")
    path.write_bytes(gguf())  # a different model meanwhile
    catalogue.refresh()
    assert ids(catalogue) == ["spark", "wanderer", "wanderer-2"]
    other.unlink()
    assert catalogue.relocate("wanderer", path).id == "wanderer-2"
    assert ids(catalogue) == ["spark", "wanderer-2"]
    other.write_bytes(gguf(numbers={"llama.context_length": 10}))
    assert catalogue.relocate("wanderer-2", other).id == "elsewhere"
    assert path.exists()
    assert ids(catalogue) == ["elsewhere", "spark", "wanderer-2"]


def test_a_broken_file_is_listed_with_its_reason_and_never_as_usable(catalogue, put, gguf):
    put("cut.gguf", gguf()[:-8])
    put("noise.gguf", b"noise" * 100)
    catalogue.refresh()
    assert {e.id: e.state for e in catalogue.entries()} == {"cut": "broken", "noise": "broken", "spark": "online"}
    assert "incomplete" in catalogue.get("cut").problem
    assert "not a GGUF file" in catalogue.get("noise").problem


def test_split_models_are_one_entry_and_say_which_part_is_missing(catalogue, put, gguf):
    put("big-Q4_K_M-00001-of-00002.gguf", gguf(tensors=[("a", (8,))], split=(0, 2)))
    catalogue.refresh()
    assert "big-Q4_K_M-00002-of-00002.gguf" in catalogue.get("big-q4_k_m").problem
    put("big-Q4_K_M-00002-of-00002.gguf", gguf(tensors=[("b", (8,))], split=(1, 2)))
    catalogue.refresh()
    big = catalogue.get("big-q4_k_m")
    assert (big.state, len(big.files), big.details.n_params) == ("online", 2, 16)


def test_names_that_collide_are_numbered_and_stay(catalogue, put, gguf):
    for folder in ("a", "b", "c"):
        put(f"{folder}/Same Name.gguf", gguf())
    catalogue.refresh()
    assert ids(catalogue) == ["same-name", "same-name-2", "same-name-3", "spark"]
    before = {str(e.path): e.id for e in catalogue.entries()}
    catalogue.refresh()
    assert {str(e.path): e.id for e in catalogue.entries()} == before
    assert catalogue.get("Same Name") is None  # three of that name: none is chosen silently


def test_a_file_whose_ending_has_capitals_is_a_model(catalogue, put, gguf, tmp_path):
    put("TINY.GGUF", gguf())
    catalogue.refresh()
    assert catalogue.get("tiny").architecture == "llama"
    (tmp_path / "Other.Gguf").write_bytes(gguf(numbers={"llama.context_length": 7}))
    assert catalogue.add(tmp_path / "Other.Gguf", Origin(kind="file")).id == "other"


def test_hugging_face_folders(catalogue, paths):
    shutil.copytree(SPARK_HF, paths.models / "spark-hf")
    catalogue.refresh()
    entry = catalogue.get("spark-hf")
    assert (entry.format, entry.architecture, entry.state) == ("safetensors", "LlamaForCausalLM", "online")
    assert entry.path == paths.models / "spark-hf"
    assert "chat" in entry.capabilities


def test_onnx_folders(catalogue, put):
    put("phi/genai_config.json", json.dumps({"model": {"type": "phi3", "context_length": 4096}}).encode())
    put("phi/model.onnx", b"x")
    put("bad/genai_config.json", b"[]")
    put("bad/model.onnx", b"x")
    catalogue.refresh()
    assert (catalogue.get("phi").format, catalogue.get("phi").context_train) == ("onnx", 4096)
    assert catalogue.get("bad").state == "broken"


def test_a_folder_in_openvinos_own_format_is_shown_with_what_it_needs(catalogue, put):
    put("phi-int4-ov/config.json", b"{}")
    for name in ("openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml"):
        put(f"phi-int4-ov/{name}", b"x")
    put("minilm/openvino/openvino_model.xml", b"x")  # next to the ONNX form of the same model: not a second model
    catalogue.refresh()
    assert {e.id for e in catalogue.entries()} == {"phi-int4-ov", "spark"}
    entry = catalogue.get("phi-int4-ov")
    assert entry.state == "broken"
    assert "OpenVINO's own format" in entry.problem
    assert "GGUF instead" in entry.problem


def test_a_projector_belongs_to_the_models_beside_it(catalogue, put, gguf):
    put("gemma/gemma.gguf", gguf())
    put("gemma/mmproj-F16.gguf", gguf("clip"))
    catalogue.refresh()
    assert ids(catalogue) == ["gemma", "spark"]
    assert catalogue.get("gemma").projector.endswith("mmproj-F16.gguf")
    assert "vision" in catalogue.get("gemma").capabilities


PLAIN = [("t", (8,))]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (("llama", {}, {}, PLAIN), ("completion",)),
        (("llama", {"tokenizer.chat_template": "{{ messages }}"}, {}, PLAIN), ("completion", "chat")),
        (
            (
                "qwen3",
                {"tokenizer.chat_template": "{% if tools %}{% endif %}<think>"},
                {"tokenizer.ggml.fim_pre_token_id": 1},
                PLAIN,
            ),
            ("completion", "chat", "tools", "reasoning", "fim"),
        ),
        (("nomic-bert", {}, {}, PLAIN), ("embedding",)),
        (("qwen3", {}, {"qwen3.pooling_type": 3}, PLAIN), ("embedding",)),
        (("qwen3", {}, {"qwen3.pooling_type": 4}, PLAIN), ("rerank",)),
        (("bert", {}, {}, [("cls.weight", (8,))]), ("rerank",)),
    ],
)
def test_capabilities(make, expected, catalogue, put, gguf):
    architecture, strings, numbers, tensors = make
    put("m.gguf", gguf(architecture, strings=strings, numbers=numbers, tensors=tensors))
    catalogue.refresh()
    assert catalogue.get("m").capabilities == expected


def test_adding_a_file_where_it_lies(catalogue, tmp_path, gguf):
    path = tmp_path / "elsewhere.gguf"
    path.write_bytes(gguf())
    entry = catalogue.add(path)
    assert (entry.id, entry.origin.kind, entry.path) == ("elsewhere", "linked", path)
    for bad in (tmp_path / "absent.gguf", tmp_path, Path("pyproject.toml")):
        with pytest.raises(BadModelFile):
            catalogue.add(bad)
    (tmp_path / "noise.gguf").write_bytes(b"noise")
    with pytest.raises(BadModelFile, match=r"not a GGUF|incomplete"):
        catalogue.add(tmp_path / "noise.gguf")
    assert ids(catalogue) == ["elsewhere", "spark"]


def test_a_damaged_catalogue_is_kept_aside_and_begun_anew(paths, put, gguf):
    put("m.gguf", gguf())
    Catalogue(paths).close()
    for extra in paths.state.glob("library.db-*"):
        extra.unlink()
    (paths.state / "library.db").write_bytes(b"not a database, not at all" * 100)
    again = Catalogue(paths)
    assert ids(again) == ["m", "spark"]
    assert list(paths.state.glob("library.db.corrupt-*"))
    again.close()


def test_a_state_folder_that_cannot_be_made_leaves_a_working_list(paths):
    paths.state.parent.mkdir(parents=True, exist_ok=True)
    paths.state.write_text("a file where the folder should be")
    assert ids(Catalogue(paths)) == ["spark"]


@pytest.mark.process
def test_two_processes_and_many_threads_agree(paths, put, gguf):
    for index in range(20):
        put(f"m{index:02}.gguf", gguf())
    code = "from engine.library.catalogue import Catalogue; print(len(Catalogue().entries()))"
    others = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    catalogue = Catalogue(paths)
    errors = []

    def work():
        try:
            for _ in range(5):
                catalogue.refresh()
                assert len(catalogue.entries()) == 21
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.communicate(timeout=100)[0] for other in others] == [b"21\n", b"21\n"]
    assert errors == []
    assert len({e.id for e in catalogue.entries()}) == 21
    catalogue.close()


def test_odd_file_names(catalogue, put, gguf):
    put("Ünïcode 模型 (v1).gguf", gguf())
    put(".hidden.gguf", gguf())
    if sys.platform == "linux":  # macOS refuses such names
        Path(os.fsdecode(os.fsencode(catalogue.paths.models) + b"/bad\xff.gguf")).write_bytes(gguf())
    if os.name == "posix":
        (put("x.gguf", gguf()).parent / "loop").symlink_to(".")
    catalogue.refresh()
    assert ids(catalogue) == ["spark", "unicode-v1", "x"]
    assert os.fsdecode(catalogue.get("unicode-v1").path.name).startswith("Ünïcode")


def test_a_second_installation_does_not_double_the_bundled_model(catalogue, paths, tmp_path, monkeypatch):
    moved = tmp_path / "other" / "assets" / "models"
    shutil.copytree("assets/models", moved)
    for module in ("engine.core.paths", "engine.library.catalogue", "engine.library.origins"):
        monkeypatch.setattr(f"{module}.BUNDLED_MODELS", moved)
    other = Catalogue(paths)
    assert ids(other) == ["spark"]
    assert other.get("spark").path == moved / "spark-f16.gguf"
    other.close()


def test_models_with_names_that_say_nothing_are_called_by_their_folder(catalogue, put, gguf):
    put("jan-nano/model.gguf", gguf())
    catalogue.refresh()
    assert (catalogue.get("jan-nano").id, catalogue.get("jan-nano").name) == ("jan-nano", "jan-nano")


def test_a_file_we_built_says_so_and_where_its_report_is(catalogue, put, gguf):
    put("local/fitted.gguf", gguf())
    report = put("local/fitted.tessera.json", b"{}")
    catalogue.refresh()
    entry = catalogue.get("fitted")
    assert (entry.origin.kind, entry.report) == ("built", str(report))


def test_only_what_a_scan_finds_again_is_not_waited_for_on_the_disk(tmp_path):
    store = Store(tmp_path / "library.db")
    waits = [store._db.pragma("synchronous")]
    with store.writing(is_scan=True):
        waits.append(store._db.pragma("synchronous"))
    with store.writing():
        waits.append(store._db.pragma("synchronous"))
    with pytest.raises(ZeroDivisionError), store.writing(is_scan=True):
        _ = 1 / 0
    waits.append(store._db.pragma("synchronous"))
    store.close()
    full, normal = 2, 1
    assert waits == [full, normal, full, full]
