"""Conditions in which the CPU reads weights in the file's layout, and their reason on the placement card."""

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as replaced

from devices.memory_ledger import Ledger
from engine.message_catalog.reasons import because
from engine.placement.history import PlacementHistory
from engine.placement.placer import read_shape
from engine.placement.shape import is_repacked
from engine.placement.steps import place
from engine.placement.types import PlacementLimits
from engine.runner.engine_args import EngineArgs
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_header import TensorInfo
from quantize.ggml_types import GgmlType
from tests.support.machines.machines import reports
from tests.support.models.shapes import scaled, write_hollow

HOST = reports()["sh-linux-amdvlk-vs-rocm"]


def with_isa(*changes: str, without: str = ""):
    """The recorded machine with more or fewer CPU instruction sets."""
    cpu = HOST.devices[0]
    isa = frozenset({*cpu.isa, *changes} - {without})
    return replace(HOST, devices=(replace(cpu, isa=type(cpu.isa)(isa)), *HOST.devices[1:]))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_hollow(tmp_path_factory.mktemp("dispatch") / "m.gguf", scaled("llama", layers=2, vocab=1000)))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    file = write_hollow(tmp_path_factory.mktemp("dispatch") / "e.gguf", scaled("qwen3moe", layers=2, vocab=1000))
    return read_shape(str(file))


def of_types(shape, *types):
    """The shape with its matrices in these types, in turn."""
    matrices = [tensor for tensor in shape.tensors if len(tensor.shape) > 1]
    kinds = {tensor.name: types[index % len(types)] for index, tensor in enumerate(matrices)}
    tensors = (replace(t, ggml_type=kinds[t.name]) if t.name in kinds else t for t in shape.tensors)
    return replaced(shape, tensors=tuple(tensors))


def placed(shape, path, machine=HOST, device="cpu", **changes):
    settings = LoadSettings(path=path, n_ctx=4096, **changes)
    ledger = Ledger(lambda: machine)
    return place(shape, settings, PlacementLimits(device=device), machine, ledger, PlacementHistory(None))


def test_few_threads_do_not_wait_for_memory_and_keep_the_copy(path):
    shape = of_types(read_shape(path), GgmlType.Q4_K)
    assert placed(shape, path, n_threads=4).settings.repack is True
    assert placed(shape, path, n_threads=0).settings.repack is False


def test_4_bit_weights_are_read_as_they_are_where_tiles_are_faster(path):
    shape = of_types(read_shape(path), GgmlType.Q4_K)
    found = placed(shape, path)
    assert found.settings.repack is False
    assert because("file_weights") in found.reasons
    weights = next(part for part in found.need.parts if part.name == "weights")
    assert weights.mapped_bytes == weights.num_bytes  # no copy in addition to the file's pages


@pytest.mark.parametrize(
    "types",
    [
        (GgmlType.Q4_0,),
        (GgmlType.IQ4_NL,),
        (GgmlType.F16,),  # nothing is rewritten
        (GgmlType.Q6_K,),
        (GgmlType.Q4_0, GgmlType.Q4_0, GgmlType.Q4_K),
    ],
    ids=lambda types: "+".join(kind.name for kind in types),
)
def test_other_types_keep_their_kernels(path, types):
    found = placed(of_types(read_shape(path), *types), path)
    assert found.settings.repack is True
    assert because("file_weights") not in found.reasons


def test_a_mix_is_decided_by_most_of_what_would_be_rewritten(path):
    mixed = of_types(read_shape(path), GgmlType.Q4_K, GgmlType.Q6_K)  # as Q4_K_M is
    assert placed(mixed, path).settings.repack is False


@pytest.mark.parametrize("missing", ["avx512_vnni", "avx512vl", "avx512dq"])
def test_processors_without_vnni_keep_the_copy(path, missing):
    shape = of_types(read_shape(path), GgmlType.Q4_K)
    assert placed(shape, path, with_isa(without=missing)).settings.repack is True


def test_matrix_units_keep_their_own_order(path):
    shape = of_types(read_shape(path), GgmlType.Q4_K)
    assert placed(shape, path, with_isa("amx_int8")).settings.repack is True


def test_experts_keep_the_copy(path, mixture):
    assert placed(of_types(mixture, GgmlType.Q4_K), path).settings.repack is True


def test_a_gpus_settings_are_not_touched(path):
    found = placed(of_types(read_shape(path), GgmlType.Q4_K), path, device="igpu")
    assert found.settings.devices
    assert found.settings.repack is True


@pytest.mark.parametrize("wish", [True, False])
def test_what_the_user_asked_for_stays(path, wish):
    shape = of_types(read_shape(path), GgmlType.Q4_K)
    found = placed(shape, path, repack=wish, engine_args=EngineArgs(repack=wish))
    assert found.settings.repack is wish
    assert because("file_weights") not in found.reasons


@pytest.mark.parametrize(("dims", "copied"), [((256, 8), True), ((256, 8, 4), True), ((256, 8, 4, 2), False)])
def test_matrices_and_those_of_experts_have_a_copy(dims, copied):
    weight = TensorInfo("blk.0.ffn_up_exps.weight", dims, GgmlType.Q4_K, 0, 1)
    assert is_repacked(weight, frozenset({"avx2"})) is copied
