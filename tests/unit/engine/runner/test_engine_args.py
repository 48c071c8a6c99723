"""Raw engine arguments: which are parsed or refused, and their effect on a load."""

from types import SimpleNamespace

import msgspec
import pytest

from devices.types import Device, Memory, Runtime
from engine.placement.estimate import shared_out
from engine.placement.load_settings import decided, with_engine_args
from engine.placement.shape import Layer, ModelShape
from engine.placement.types import MemoryEstimate, MemoryPart
from engine.runner.engine_args import (
    NO_ARGS,
    BadEngineArg,
    EngineArgs,
    Metadata,
    Override,
    check,
    computing,
    from_text,
    meaning,
    metadata,
    overrides,
)
from engine.runner.load_limits import KV_TYPES
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo
from quantize.ggml_types import GgmlType


def test_values_of_a_command_line():
    given = from_text({"--rope-scale": "4", "override_tensor": "exps=CPU,blk\\.1\\.=CPU", "mmap": "false"})
    args = msgspec.convert(given, EngineArgs, strict=False)
    assert args == EngineArgs(rope_scale=4.0, override_tensor=("exps=CPU", "blk\\.1\\.=CPU"), use_mmap=False)


def test_an_unknown_name_is_told_with_the_known_ones():
    with pytest.raises(BadEngineArg, match=r"--mlok is not known; there are .*mlock"):
        from_text({"--mlok": "true"})


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (EngineArgs(override_tensor=("exps",)), "override_tensor"),
        (EngineArgs(override_tensor=("(a+)+=CPU",)), "override_tensor"),
        (EngineArgs(override_tensor=(".*.*.*.*.*x=CPU",)), "override_tensor"),
        (EngineArgs(override_tensor=("[=CPU",)), "override_tensor"),
        (EngineArgs(override_kv=("a=int:x",)), "override_kv"),
        (EngineArgs(override_kv=("a=bool:maybe",)), "override_kv"),
        (EngineArgs(override_kv=("a=long:1",)), "override_kv"),
        (EngineArgs(override_kv=(f"a=int:{1 << 63}",)), "override_kv"),
        (EngineArgs(override_kv=("a=str:" + "é" * 100,)), "override_kv"),
        (EngineArgs(rope_scale=2.0, rope_freq_scale=0.5), "rope_scale"),
        (EngineArgs(devices=("A", "B"), tensor_split=(1.0,)), "tensor_split"),
        (EngineArgs(devices=("A", "B"), tensor_split=(0.0, 0.0)), "tensor_split"),
    ],
)
def test_nonsense_is_refused_by_name(args, name):
    with pytest.raises(BadEngineArg) as refused:
        check(args)
    assert refused.value.name == name


def test_experts_on_the_processor():
    args = EngineArgs(override_tensor=("output=CUDA0",), n_cpu_moe=2, cpu_moe=True)
    experts = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    assert overrides(args) == (
        Override("output", "CUDA0"),
        Override(rf"blk\.(0|1){experts}", "CPU"),
        Override(experts, "CPU"),
    )


def test_metadata_of_each_type():
    texts = ("a.b=int:-5", "c=float:1e6", "d=bool:true", "e=str:x=y:z")
    expected = (Metadata("a.b", -5), Metadata("c", 1e6), Metadata("d", True), Metadata("e", "x=y:z"))
    assert metadata(EngineArgs(override_kv=texts)) == expected


def test_placing_changes_no_meaning():
    args = EngineArgs(cpu_moe=True, n_threads=3, rope_scale=2.0)
    assert meaning(args) == (("rope_scale", "2.0"),)
    assert computing(args) == EngineArgs(rope_scale=2.0)


def test_arguments_stand_before_what_was_dispatched():
    settings = LoadSettings(path="x", n_ctx=1024, kv_cells=4096, n_batch=512, n_ubatch=256)
    args = EngineArgs(n_ctx=8192, type_k="q8_0", n_ubatch=1024, use_mmap=False, n_gpu_layers=7)
    found = with_engine_args(settings, args)
    assert (found.n_ctx, found.kv_cells, found.type_k, found.use_mmap) == (8192, 4 * 8192, "q8_0", False)
    assert (found.n_batch, found.n_ubatch) == (1024, 1024)
    assert found.n_gpu_layers == 0  # nothing is offloaded without a device
    dispatched = msgspec.structs.replace(found, devices=("Vulkan0",), n_gpu_layers=99, use_mmap=True, n_ubatch=64)
    again = decided(dispatched)
    assert (again.n_gpu_layers, again.use_mmap, again.n_ubatch) == (7, False, 1024)
    assert decided(msgspec.structs.replace(found, engine_args=NO_ARGS, n_threads=5)).n_threads == 5


def test_cache_types_are_those_of_the_runner():
    hints = msgspec.inspect.type_info(EngineArgs)
    field = next(f for f in hints.fields if f.encode_name == "cache_type_k")
    literal = next(t for t in field.type.types if isinstance(t, msgspec.inspect.LiteralType))
    assert set(literal.values) == set(KV_TYPES)


def test_layers_whose_experts_dispatch_leaves_on_the_processor_yield_to_the_users_number():
    assert overrides(EngineArgs(), 2) == overrides(EngineArgs(n_cpu_moe=2))
    assert overrides(EngineArgs(n_cpu_moe=0), 2) == ()


def test_what_lies_on_gpus_is_shared_out_by_their_shares():
    def gpu(index):
        runtime = Runtime("cuda", f"CUDA{index}", index, 1, 1, "usable")
        named = {"vendor": "v", "name": "n", "state": "usable", "memory": Memory()}
        return Device(id=f"gpu{index}", kind="dgpu", runtimes=(runtime,), **named)

    weights = [TensorInfo(f"blk.{i}.ffn_up.weight", (100,), GgmlType.Q8_0, 0, 100) for i in range(7)]
    weights.append(TensorInfo("output.weight", (100,), GgmlType.Q8_0, 0, 100))
    sizes = {"embedding": 1, "heads": 1, "attention": 1, "feed_forward": 1, "vocabulary": 1, "context_train": 1}
    none = {"sliding_window": 0, "experts": 0, "experts_used": 0}
    shape = ModelShape(
        architecture="llama", layers=(Layer(),) * 7, file_bytes=800, tensors=tuple(weights), **sizes, **none
    )
    parts = (
        MemoryPart(name="weights", device="gpu0", num_bytes=800),
        MemoryPart(name="compute", device="gpu0", num_bytes=9),
        MemoryPart(name="overhead", device="cpu", num_bytes=5),
    )
    kv = (0,) * 7
    need = MemoryEstimate(
        n_ctx=1, kv_cells=1, n_sequences=1, type_k="f16", type_v="f16", n_gpu_layers=-1, parts=parts,
        kv_layer_bytes=kv,
    )  # fmt: skip
    here = SimpleNamespace(devices=(gpu(0), gpu(1)))
    args = EngineArgs(devices=("CUDA0", "CUDA1"), tensor_split=(3.0, 1.0))
    at = LoadSettings(path="x", devices=args.devices, n_gpu_layers=-1, engine_args=args)
    found = shared_out(need, shape, at, here, "gpu0")
    assert [(p.device, p.num_bytes) for p in found.parts] == [
        ("gpu0", 600), ("gpu1", 200), ("gpu0", 9), ("gpu1", 9), ("cpu", 5),
    ]  # fmt: skip
    alone = msgspec.structs.replace(at, engine_args=EngineArgs(devices=args.devices, split_mode="none"))
    assert shared_out(need, shape, alone, here, "gpu0") == need
