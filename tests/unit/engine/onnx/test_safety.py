"""ONNX files that try to leave their folder, run code, or declare false sizes are refused before ONNX Runtime."""

import json
import os
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from devices.environment import without_secrets
from engine.message_catalog import sentence
from engine.onnx.folder import read_folder
from engine.onnx.providers import ADAPTERS, adapter_of
from engine.onnx.safety import check_graph
from quantize.errors import BadFile, IncompleteFile, RefusedFormat


def weights(name="w", *, location="w.data", offset=0, length=64, dims=(4, 4), kind=TensorProto.FLOAT):
    tensor = TensorProto(name=name, data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def write(folder, *tensors, nodes=(), **graph_parts):
    node = helper.make_node("Identity", ["w"], ["y"])
    graph = helper.make_graph(
        [node, *nodes], "g", [], [helper.make_tensor_value_info("y", 1, [4, 4])], initializer=list(tensors)
    )
    for name, values in graph_parts.items():
        getattr(graph, name).extend(values)
    opsets = [helper.make_opsetid("", 21), *(helper.make_opsetid(n.domain, 1) for n in nodes if n.domain)]
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    (made / "w.data").write_bytes(bytes(64))
    (tmp_path / "secret").write_bytes(bytes(64))
    return made


def refused(folder, kind, match, *tensors, **parts):
    with pytest.raises(kind, match=match):
        check_graph(write(folder, *tensors, **parts), folder)


def test_a_sound_graph_passes(folder):
    assert check_graph(write(folder, weights()), folder).graph.node[0].op_type == "Identity"


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "a/../../secret", "..\\secret", "C:\\x", "", "w.data\0"]
)
def test_external_data_stays_in_the_folder(folder, location):
    refused(folder, BadFile, "not a plain file name|cannot be read", weights(location=location))


def test_a_location_that_is_not_utf8_is_a_bad_file(folder):
    path = write(folder, weights(location="w.dat\x7f"))
    path.write_bytes(path.read_bytes().replace(b"w.dat\x7f", b"w.dat\xff"))
    with pytest.raises(BadFile):
        check_graph(path, folder)


def test_a_symbolic_link_out_of_the_folder_is_refused(folder):
    (folder / "link.data").symlink_to(folder.parent / "secret")
    refused(folder, BadFile, "leads out", weights(location="link.data"))


def test_a_hard_link_is_refused(folder):
    os.link(folder.parent / "secret", folder / "hard.data")
    refused(folder, RefusedFormat, "hard link", weights(location="hard.data"))


def test_external_data_inside_attributes_and_subgraphs_is_found(folder):
    bad = weights("c", location="../secret")
    constant = helper.make_node("Constant", [], ["c"], value=bad)
    refused(folder, BadFile, "not a plain file name", weights(), nodes=[constant])
    inner = helper.make_graph([helper.make_node("Identity", ["c"], ["z"])], "inner", [], [], initializer=[bad])
    branch = helper.make_node("If", ["w"], ["z"], then_branch=inner, else_branch=inner)
    refused(folder, BadFile, "not a plain file name", weights(), nodes=[branch])


def test_sparse_tensors_are_refused(folder):
    sparse = onnx.SparseTensorProto(values=weights(location="../secret"), dims=[4, 4])
    refused(folder, RefusedFormat, "sparse", weights(), sparse_initializer=[sparse])


def test_operators_of_its_own_are_refused(folder):
    custom = helper.make_node("Evil", ["w"], ["z"], domain="com.example")
    refused(folder, RefusedFormat, "custom operators", weights(), nodes=[custom])


def test_truncated_external_data(folder):
    (folder / "w.data").write_bytes(bytes(63))
    refused(folder, IncompleteFile, "ends after 63 bytes, a complete file has 64", weights())


def test_a_type_that_does_not_fit_the_bytes(folder):
    refused(folder, BadFile, "its shape needs 32", weights(kind=TensorProto.FLOAT16))
    inside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4], raw_data=bytes(32))
    refused(folder, BadFile, "32 bytes, its shape needs 64", inside)


@pytest.mark.parametrize("dims", [(1 << 40, 1 << 40), (-1, 4), (1,) * 40])
def test_huge_and_impossible_shapes(folder, dims):
    refused(folder, BadFile, "would take|impossible", weights(dims=dims))


@pytest.mark.parametrize("offset", ["-1", "1e3", "99999999999999999999", "0x10", ""])
def test_offsets_that_are_none(folder, offset):
    refused(folder, BadFile, "not an offset|incomplete", weights(offset=offset))


def test_unknown_types_and_values_named_twice(folder):
    refused(folder, BadFile, "unknown type", weights(kind=99))
    twice = weights()
    twice.external_data.add(key="location", value="../secret")
    refused(folder, BadFile, "twice", twice)


@pytest.mark.parametrize("content", [b"", b"\x08", b"not protobuf at all" * 9, bytes(1000)])
def test_files_that_are_no_graph(folder, content):
    (folder / "model.onnx").write_bytes(content)
    with pytest.raises(BadFile):
        check_graph(folder / "model.onnx", folder)


def test_precompiled_parts_stay_in_the_folder(folder):
    node = helper.make_node(
        "EPContext", [], ["z"], domain="com.microsoft", embed_mode=0, ep_cache_context="../secret"
    )
    refused(folder, BadFile, "not a plain file name", weights(), nodes=[node])


# ------------------------------------------------------------------ the folder's configuration


def config(**changes):
    decoder = {"filename": "model.onnx", "head_size": 64, "num_hidden_layers": 2, "num_key_value_heads": 2}
    model = {"type": "llama", "context_length": 512, "vocab_size": 100, "eos_token_id": 2, "decoder": decoder}
    model["decoder"] |= changes.pop("decoder", {})
    return {"model": model | changes}


def read(folder, value):
    (folder / "genai_config.json").write_text(json.dumps(value))
    write(folder, weights())
    return read_folder(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"session_options": {"custom_ops_library": "libevil.so"}},
        {"session_options": {"provider_options": [{"RyzenAI": {"dd_root": "/opt/evil"}}]}},
        {"session_options": {"provider_options": [{"QNN": {"backend_path": "../libevil.so"}}]}},
        {"session_options": {"provider_options": [{"X": {"a": {"b": ["x", {"ep_library": "y"}]}}}]}},
        {"session_options": {"optimized_model_filepath": "..\\..\\autostart"}},
    ],
)
def test_settings_that_load_code_or_leave_the_folder(folder, options):
    with pytest.raises(RefusedFormat, match=r"its own library|outside the folder"):
        read(folder, config(decoder=options))


@pytest.mark.parametrize("name", ["../m.onnx", "/m.onnx", "sub/m.onnx"])
def test_graphs_outside_the_folder(folder, name):
    with pytest.raises(BadFile):
        read(folder, config(decoder={"filename": name}))


@pytest.mark.parametrize("field", [{"context_length": 10**15}, {"vocab_size": -1}, {"context_length": "many"}])
def test_numbers_no_model_has(folder, field):
    with pytest.raises(BadFile, match="not a number up to"):
        read(folder, config(**field))


def test_a_ryzen_ai_folder_tells_its_release(folder):
    value = config(decoder={"session_options": {"provider_options": [{"RyzenAI": {"dd_cache": ".cache"}}]}})
    moved = folder.parent / "Llama-3.2-1B_rai_1.8.0_npu_4K"
    shutil.copytree(folder, moved)
    found = read(moved, value)
    assert (found.providers, found.release) == (("RyzenAI",), "1.8.0")
    (folder / "rai_config.json").write_text(json.dumps({"max_prompt_length": {"1.7.0": 2048, "1.10.0": 4096}}))
    assert read(folder, value).release == "1.10.0"


def test_qnn_and_openvino_folders_tell_what_they_need(folder):
    for name, provider in (("QNN", "QNNExecutionProvider"), ("OpenVINO", "OpenVINOExecutionProvider")):
        found = read(folder, config(decoder={"session_options": {"provider_options": [{name: {}}]}}))
        adapter = adapter_of(found.providers[0])
        assert adapter.provider == provider
        assert "pip install" in sentence(adapter.problem(None, {}))


def test_every_adapter_says_what_was_tried():
    assert all("not tried on hardware" in sentence(a.tried) for a in ADAPTERS.values())


def test_numpy_written_tensors_pass(folder):
    inside = onnx.numpy_helper.from_array(np.zeros((4, 4), np.float32), "w")
    check_graph(write(folder, inside), folder)


def test_importing_takes_the_pooling_of_an_encoder_along(tmp_path, tessera_home):
    from engine.jobs.jobs import JobContext
    from engine.library.catalogue import Catalogue
    from engine.library.importing import import_copy
    from engine.onnx.folder import pooling
    from tests.support.models.bert_shape import write_bert
    from tests.support.models.onnx_bert import write_onnx_bert

    source = write_onnx_bert(write_bert(tmp_path / "b.gguf"), tmp_path / "encoder")
    catalogue = Catalogue()
    entry = import_copy(catalogue, source, JobContext())
    assert (entry.format, entry.capabilities) == ("onnx", ("embedding",))
    assert pooling(entry.path) == "cls"
    assert sum(f.path.endswith(".data") for f in entry.files) == 1
    catalogue.close()


def test_children_get_the_variables_that_name_libraries_and_switches_but_no_token(monkeypatch):
    named = [adapter.environment for adapter in ADAPTERS.values() if adapter.environment]
    switches = ["HF_HUB_DISABLE_IMPLICIT_TOKEN", "RYZEN_AI_INSTALLATION_PATH", "ADSP_LIBRARY_PATH"]
    for name in (*named, *switches, "HF_TOKEN"):
        monkeypatch.setenv(name, "1")
    passed = without_secrets()
    assert [name for name in (*named, *switches) if name not in passed] == []
    assert "HF_TOKEN" not in passed
