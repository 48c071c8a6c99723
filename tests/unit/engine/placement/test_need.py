"""Bytes of a load, compared with numbers computed by hand and with llama.cpp's own."""

import dataclasses
import sys
from dataclasses import replace as with_changes

import msgspec
import pytest

from engine.message_catalog.reasons import because
from engine.placement.dry_run import UNRELATED, DryRunFailed, _key, dry_run
from engine.placement.estimate import (
    compute_prior,
    estimate,
    exact_parts,
    kv_layer_bytes,
    need_at,
    rescaled,
)
from engine.placement.fit_report import _notes
from engine.placement.placer import read_shape
from engine.placement.shape import LAZY_BYTES, TABLE, is_repacked, shape_of
from engine.placement.types import DryRun
from engine.runner.engine_args import EngineArgs
from engine.runner.load_limits import resize_context
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo, read_gguf
from quantize.ggml_types import GgmlType
from tests.support.models.mtp_model import MTP_MODELS, write_mtp_model
from tests.support.models.shapes import SHAPES, scaled, write_hollow

MIB = 1 << 20
AVX2 = frozenset({"avx2"})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    small = {"vocab": 1000}
    return {
        name: str(write_hollow(folder / f"{name}.gguf", with_changes(s, **small))) for name, s in SHAPES.items()
    }


def settings(path, n_ctx=4096, **changes):
    return LoadSettings(path=path, n_ctx=n_ctx, **changes)


def test_grouped_queries_keep_only_key_and_value_heads(files):
    shape = read_shape(files["llama"])
    per_layer = 4096 * 2 * 64 * 2 * 2  # cells, kv heads, head size, K and V, f16
    assert kv_layer_bytes(shape, settings(files["llama"])) == (per_layer,) * 6


def test_quantized_cache_rows(files):
    shape = read_shape(files["llama"])
    per_layer = 4096 * 2 * (128 // 32 * 34)
    assert kv_layer_bytes(shape, settings(files["llama"], type_k="q8_0", type_v="q8_0"))[0] == per_layer


def test_sliding_layers_keep_a_window_for_each_sequence(files):
    shape = read_shape(files["gemma3"])
    at = settings(files["gemma3"], n_ctx=32768, n_parallel=1, n_ubatch=512)
    window = 512 * 10 + 512  # 2 * 1 + 8 sequences
    row = 2 * 4 * 128 * 2
    expected = [32768 * row if i % 6 == 5 else window * row for i in range(12)]
    assert list(kv_layer_bytes(shape, at)) == expected


def test_compressed_attention_keeps_one_latent_row_and_no_values(files):
    shape = read_shape(files["deepseek2"])
    assert kv_layer_bytes(shape, settings(files["deepseek2"]))[0] == 4096 * (256 + 32) * 2


def test_recurrent_state_does_not_grow_with_the_context(files):
    shape = read_shape(files["mamba"])
    short, long = (estimate(shape, settings(files["mamba"], n_ctx=n), AVX2) for n in (2048, 32768))
    state = 4 * (3 * 1024 + 16 * 1024) * 6 * 4  # float32, layers, sequences
    assert short.part_bytes("recurrent") == long.part_bytes("recurrent") == state
    assert short.part_bytes("kv") == 0
    # The context for deterministic requests has one sequence.
    assert exact_parts(shape, settings(files["mamba"]))["kv"] == state // 4


def test_hybrids_mix_both(files):
    shape = read_shape(files["lfm2"])
    assert {layer.state_bytes for layer in shape.layers} == {
        0,
        4 * shape.embedding * 2,
    }  # two earlier tokens of three
    assert [bool(layer.state_bytes) for layer in shape.layers] == [
        True,
        True,
        False,
        True,
        True,
        False,
        True,
        False,
    ]
    assert [bool(layer.key_values) for layer in shape.layers] == [
        False,
        False,
        True,
        False,
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.process
def test_formulas_agree_with_llama_cpp(files, name):
    """Caches and output match its log up to rounding; the expected scratch memory is never too small."""
    at = settings(files[name], n_ctx=3000, flash_attn="on", type_k="q8_0", type_v="q8_0", n_parallel=3)
    shape = read_shape(files[name])
    told = dry_run(at)
    need = estimate(shape, at, AVX2)
    assert need.part_bytes("kv") == pytest.approx(told.kv_bytes, abs=0.02 * MIB)
    assert need.part_bytes("recurrent") == pytest.approx(told.recurrent_bytes, abs=0.02 * MIB)
    assert need.part_bytes("output") == pytest.approx(told.output_bytes, abs=0.02 * MIB)
    assert sum(told.compute_bytes.values()) <= compute_prior(shape, at) * 1.05


def test_masks_of_sliding_layers_cover_the_window_of_each_sequence(files):
    shape = read_shape(files["gemma3"])
    few, many = (settings(files["gemma3"], n_ctx=32768, n_ubatch=512, n_parallel=n) for n in (1, 2))
    logits = 4 * shape.vocabulary
    more = compute_prior(shape, many) - compute_prior(shape, few) - logits
    assert more == 2 * 512 * 2 * shape.sliding_window  # two bytes per token and cell of two more sequences


def test_what_a_driver_pins_for_a_gpu_is_system_memory(files):
    """llama.cpp calls these buffers NAME_Host; nothing else can use their pages while the model is loaded."""
    shape = read_shape(files["llama"])
    at = settings(files["llama"], n_gpu_layers=-1, devices=("Vulkan0",))

    def host_bytes(**buffers):
        run = DryRun(kv_bytes=0, recurrent_bytes=0, output_bytes=0, compute_bytes=buffers, overhead_bytes=0)
        return estimate(shape, at, AVX2, gpu="0000:c3:00.0", dry_run=run).device_bytes("cpu")

    assert host_bytes(Vulkan0=300 * MIB, Vulkan_Host=40 * MIB) - host_bytes(Vulkan0=300 * MIB) == 40 * MIB
    assert host_bytes(ROCm0=300 * MIB, ROCm_Host=9 * MIB) - host_bytes(ROCm0=10 * MIB) == 9 * MIB


@pytest.mark.process
def test_a_dry_run_is_rescaled_to_another_context(files):
    shape = read_shape(files["gemma3"])
    before = settings(files["gemma3"], n_ctx=2048, flash_attn="on")
    after = resize_context(before, 16384)
    guess, told = rescaled(shape, dry_run(before), before, after), dry_run(after)
    assert guess.kv_bytes == pytest.approx(told.kv_bytes, rel=0.001)
    assert sum(guess.compute_bytes.values()) == pytest.approx(sum(told.compute_bytes.values()), rel=0.12)


@pytest.mark.process
def test_dry_runs_are_kept_by_file_and_settings(files, tmp_path):
    cache = tmp_path / "cache" / "dry_runs.json"
    first = dry_run(settings(files["llama"]), cache)
    assert dry_run(settings(files["llama"], n_threads=3), cache) == first
    assert dry_run(settings(files["llama"], n_ctx=8192), cache) != first
    cache.write_bytes(b"{")
    assert dry_run(settings(files["llama"]), cache).kv_bytes == first.kv_bytes


@pytest.mark.process
def test_a_dry_run_is_made_again_for_more_copies_of_states(files, tmp_path):
    cache = tmp_path / "dry_runs.json"
    alone, copied = (dry_run(settings(files["lfm2"], max_rollback=n), cache).recurrent_bytes for n in (0, 4))
    assert copied == pytest.approx(5 * alone, rel=0.05)


def test_settings_without_effect_on_a_dry_run_exist():
    assert set(LoadSettings.__struct_fields__) >= UNRELATED


def test_a_dry_run_is_of_one_interpreter(files, tmp_path, monkeypatch):
    """Its process is as large as that interpreter, which an update of the system replaces."""
    keys = {_key(settings(files["llama"]))}
    monkeypatch.setattr("sys.version", "4.0")
    assert _key(settings(files["llama"])) not in keys


def test_adapters_are_weights_where_the_layers_are(files, tmp_path):
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(bytes(600 * 1000))
    shape, plain = read_shape(files["llama"]), settings(files["llama"], n_gpu_layers=-1)
    for gpu, layers, on_gpu in ((None, 0, 0), ("gpu", -1, 600_000), ("gpu", 4, 300_000)):
        at = msgspec.structs.replace(plain, n_gpu_layers=layers)
        adapted = msgspec.structs.replace(at, lora=(str(adapter),))
        without, with_one = (need_at(shape, each, AVX2, gpu, None) for each in (at, adapted))
        assert with_one.total_bytes - without.total_bytes == 600_000
        assert with_one.device_bytes("gpu") - without.device_bytes("gpu") == on_gpu
        assert with_one.resident_bytes - without.resident_bytes == 600_000 - on_gpu


@pytest.mark.process
def test_a_file_llama_cpp_refuses_is_an_answer(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(DryRunFailed):
        dry_run(settings(str(broken)))


@pytest.mark.process
def test_a_dry_run_that_hangs_is_ended(files, monkeypatch):
    hanging = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr("engine.placement.dry_run.child_command", lambda *_: hanging)
    with pytest.raises(DryRunFailed, match="no answer"):
        dry_run(settings(files["llama"]), timeout_s=1)


def test_weights_on_the_processor_are_pages_of_the_file_unless_rewritten(files):
    plain = estimate(read_shape(files["llama"]), settings(files["llama"]), AVX2)
    packed = estimate(read_shape(files["llama-q4_0"]), settings(files["llama-q4_0"]), AVX2)
    unmapped = estimate(read_shape(files["llama"]), settings(files["llama"], use_mmap=False), AVX2)
    assert plain.mapped_bytes("cpu") == plain.part_bytes("weights")
    assert 0 < packed.mapped_bytes("cpu") < 0.2 * packed.part_bytes("weights")
    assert packed.resident_bytes > packed.total_bytes - packed.part_bytes("output")
    assert unmapped.mapped_bytes("cpu") == 0


@pytest.mark.parametrize(
    ("qtype", "isa", "rows", "expected"),
    [
        (GgmlType.Q4_K, AVX2, 64, True),
        (GgmlType.Q4_K, AVX2, 60, False),
        (GgmlType.Q6_K, AVX2, 64, False),
        (GgmlType.Q6_K, frozenset({"asimddp"}), 64, True),
        (GgmlType.Q8_0, AVX2, 64, False),
        (GgmlType.Q8_0, frozenset({"amx_int8"}), 64, True),
        (GgmlType.F16, AVX2, 64, False),
        (GgmlType.Q2_K, frozenset({"avx512f"}), 64, True),
    ],
)
def test_which_weights_are_rewritten(qtype, isa, rows, expected):
    tensor = TensorInfo("blk.0.attn_q.weight", (256, rows), qtype, 0, 1)
    assert is_repacked(tensor, isa) is expected
    embedding = TensorInfo("token_embd.weight", (256, rows), qtype, 0, 1)
    assert not is_repacked(embedding, isa)


@pytest.mark.parametrize("layers", [0, 1, 3, 6, 7, 99, -1])
def test_offload_moves_the_last_layers_and_loses_nothing(files, layers):
    shape = read_shape(files["llama"])
    at = settings(files["llama"], n_gpu_layers=layers)
    need = estimate(shape, at, AVX2, gpu="gpu")
    total = sum(t.nbytes for t in shape.tensors)
    weights = {p.device: p.num_bytes for p in need.parts if p.name == "weights"}
    assert sum(weights.values()) == total
    on_gpu = 6 if layers < 0 else max(0, min(6, layers - 1))
    assert sum(p.num_bytes for p in need.parts if p.name == "kv" and p.device == "gpu") == sum(
        kv_layer_bytes(shape, at)[6 - on_gpu :] if on_gpu else ()
    )


def test_a_tied_head_is_copied_to_the_gpu(files):
    shape = read_shape(files["qwen3"])
    need = estimate(shape, settings(files["qwen3"], n_gpu_layers=-1), AVX2, gpu="gpu")
    embedding = next(t.nbytes for t in shape.tensors if t.name == "token_embd.weight")
    assert need.part_bytes("weights") == sum(t.nbytes for t in shape.tensors) + embedding


def test_a_correction_scales_the_whole_need(files):
    shape = read_shape(files["llama"])
    plain = estimate(shape, settings(files["llama"]), AVX2)
    corrected = estimate(shape, settings(files["llama"]), AVX2, correction=1.1)
    assert corrected.total_bytes == pytest.approx(plain.total_bytes * 1.1, rel=1e-6)


def test_context_and_shared_cache_shrink_together(files):
    at = settings(files["llama"], n_ctx=8192, kv_cells=32768)
    assert resize_context(at, 2048).kv_cells == 8192
    need = need_at(read_shape(files["llama"]), at, AVX2, None, None)
    assert need.kv_cells == 32768
    assert msgspec.json.decode(msgspec.json.encode(need))["kv_cells"] == 32768


def test_layers_of_a_draft_head_are_not_counted(tmp_path):
    path = write_hollow(tmp_path / "small.gguf", scaled("llama", layers=4, vocab=300))
    header = read_gguf(path)
    metadata = {**header.metadata, "llama.nextn_predict_layers": 1}
    drafted = dataclasses.replace(header, metadata=metadata)
    shape = shape_of(drafted, header.tensors, header.file_bytes)
    assert len(shape.layers) == 3
    assert shape.skipped_bytes == sum(t.nbytes for t in header.tensors if t.name.startswith("blk.3."))


@pytest.mark.parametrize("arch", MTP_MODELS)
def test_a_head_that_guesses_ahead_is_known_and_counted(tmp_path, arch):
    shape = read_shape(write_mtp_model(tmp_path / "m.gguf", "random", arch))
    assert shape.has_head
    assert shape.skipped_bytes > 0
    at = settings("m.gguf", n_ctx=1024, n_parallel=4, n_batch=512, n_ubatch=128)
    without = need_at(shape, at, AVX2, None, None)
    with_it = need_at(shape, msgspec.structs.replace(at, mtp=True), AVX2, None, None)
    assert with_it.part_bytes("weights") == without.part_bytes("weights") + shape.skipped_bytes
    assert without.part_bytes("draft") == 0
    cache = 2 * 1024 * 2 * (shape.layers[-1].key_values + shape.layers[-1].value_values)
    assert cache < with_it.part_bytes("draft") < cache + (20 << 20)
    assert with_it.resident_bytes - without.resident_bytes >= with_it.part_bytes("draft")


@pytest.mark.parametrize(
    "changes",
    [
        {"general.architecture": "mimo2"},
        {"deepseek2.nextn_predict_layers": 2},
        {"deepseek2.attention.temperature_scale": 0.1},
        {"deepseek2.attention.q_lora_rank": 0},
    ],
)
def test_heads_that_would_end_the_process_are_not_used(tmp_path, changes):
    header = read_gguf(write_mtp_model(tmp_path / "m.gguf", "random", "deepseek2"))
    changed = dataclasses.replace(header, metadata={**header.metadata, **changes})
    assert shape_of(header, header.tensors, header.file_bytes).has_head
    assert not shape_of(changed, header.tensors, header.file_bytes).has_head
    fewer = [t for t in header.tensors if not t.name.endswith("nextn.hnorm.weight")]
    assert not shape_of(header, fewer, header.file_bytes).has_head


def with_args(path, **args):
    return settings(path, n_gpu_layers=-1, devices=("Vulkan0",), engine_args=EngineArgs(**args))


def on_gpu(shape, at, name):
    need = estimate(shape, at, AVX2, gpu="gpu")
    return sum(part.num_bytes for part in need.parts if part.device == "gpu" and part.name == name)


def test_overridden_tensors_are_counted_where_they_lie(files):
    path = files["qwen3moe"]
    shape = read_shape(path)
    experts = sum(t.nbytes for t in shape.tensors if "_exps" in t.name)
    everything = on_gpu(shape, with_args(path), "weights")
    assert experts
    assert on_gpu(shape, with_args(path, cpu_moe=True), "weights") == everything - experts
    assert on_gpu(shape, with_args(path, override_tensor=("_exps=CPU",)), "weights") == everything - experts
    first = sum(t.nbytes for t in shape.tensors if "_exps" in t.name and t.name.startswith("blk.0."))
    assert on_gpu(shape, with_args(path, n_cpu_moe=1), "weights") == everything - first
    back = with_args(path, override_tensor=("blk.0.=Vulkan0",), cpu_moe=True)
    assert on_gpu(shape, back, "weights") == everything - experts + first


def test_a_cache_can_stay_with_the_processor(files):
    shape = read_shape(files["llama"])
    assert on_gpu(shape, with_args(files["llama"]), "kv")
    assert not on_gpu(shape, with_args(files["llama"], kv_offload=False), "kv")


@pytest.mark.process
def test_sliding_layers_can_keep_everything(files):
    shape = read_shape(files["gemma3"])
    at = settings(files["gemma3"], n_ctx=32768, engine_args=EngineArgs(swa_full=True))
    assert len(set(kv_layer_bytes(shape, at))) == 1
    assert estimate(shape, at, AVX2).part_bytes("kv") == dry_run(at).kv_bytes


@pytest.mark.parametrize(("layers", "sliding"), [(64, 48), (30, 0)])
def test_only_the_large_exaone_has_layers_with_a_window(tmp_path, layers, sliding):
    made = scaled("gemma3", arch="exaone4", layers=layers, embd=64, ffn=64, vocab=64)
    shape = read_shape(str(write_hollow(tmp_path / "m.gguf", made)))
    assert sum(layer.sliding for layer in shape.layers) == sliding


def test_a_file_without_layers_has_none(tmp_path):
    made = scaled("llama", layers=0, embd=64, ffn=64, vocab=64)
    assert read_shape(str(write_hollow(tmp_path / "m.gguf", made))).layers == ()


def test_deterministic_requests_need_the_memory_of_tiles_too(files):
    shape, plain = read_shape(files["llama"]), settings(files["llama"])
    tiled = msgspec.structs.replace(plain, tiles=("q8_0",))
    assert exact_parts(shape, tiled)["compute"] > exact_parts(shape, plain)["compute"]


@pytest.mark.parametrize(
    ("name", "num_bytes", "lazy"),
    [(TABLE, LAZY_BYTES, True), (TABLE, LAZY_BYTES - 1, False), ("output.weight", LAZY_BYTES, False)],
)
def test_only_a_large_table_of_rows_is_read_row_by_row(files, name, num_bytes, lazy):
    tensors = (TensorInfo(name, (8, 8), GgmlType.F16, 0, num_bytes),)
    shape = msgspec.structs.replace(read_shape(files["llama"]), architecture="gemma4", tensors=tensors)
    assert (shape.lazy_table is not None) is lazy


def test_a_context_longer_than_the_trained_one_is_noted(files):
    shape = read_shape(files["llama"])
    trained = shape.context_train
    assert _notes(shape, settings(files["llama"], trained)) == ()
    assert _notes(shape, settings(files["llama"], trained + 1)) == (because("beyond_training", tokens=trained),)
