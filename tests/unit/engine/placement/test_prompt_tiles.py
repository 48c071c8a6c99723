"""Tessera's CPU kernels: what they compute, their cost, and their reason on the placement card."""

from pathlib import Path

import pytest
from msgspec.structs import replace as replaced

from devices.backends.cpu_kernels import ATTENTION
from devices.memory_ledger import Ledger
from engine.job_kinds.autotune.space import dimensions
from engine.message_catalog import sentence, sentences
from engine.message_catalog.reasons import because
from engine.placement import candidates
from engine.placement.cpu_choices import TILE_KERNELS, prompt_tiles, tile_attention
from engine.placement.estimate import tile_bytes
from engine.placement.fallbacks import next_fallback
from engine.placement.history import PlacementHistory
from engine.placement.load_settings import decided
from engine.placement.measurements import knobs_of
from engine.placement.placer import read_shape
from engine.placement.speed import Forecast
from engine.placement.steps import place
from engine.placement.types import PlacementLimits
from engine.runner.engine_args import EngineArgs
from engine.runner.protocol import LoadSettings
from engine.server.openai.receipts import plan_of
from quantize.ggml_types import GgmlType
from tests.support.machines.machines import reports
from tests.support.models.shapes import scaled, write_hollow

HOST = reports()["sh-linux-amdvlk-vs-rocm"]
ISA = frozenset(HOST.devices[0].isa)
OLDER = frozenset({"avx2", "fma", "f16c"})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_hollow(tmp_path_factory.mktemp("tiles") / "m.gguf", scaled("llama", layers=20, vocab=1000)))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    file = write_hollow(tmp_path_factory.mktemp("tiles") / "e.gguf", scaled("qwen3moe", layers=2, vocab=1000))
    return read_shape(str(file))


@pytest.fixture(autouse=True)
def built(monkeypatch):
    monkeypatch.setattr(candidates, "tiles_library", lambda _folder: Path("libggml-tiles.so"))


def of_types(shape, *types, every=None):
    """The shape with its matrices in these types in turn; with `every`, each such matrix has the second type."""
    matrices = [tensor for tensor in shape.tensors if len(tensor.shape) > 1]
    kinds = {
        tensor.name: types[index % len(types)] if every is None else types[index % every == 0]
        for index, tensor in enumerate(matrices)
    }
    tensors = (replaced(t, ggml_type=kinds[t.name]) if t.name in kinds else t for t in shape.tensors)
    return replaced(shape, tensors=tuple(tensors))


def chosen(shape, isa=ISA, **changes):
    found = prompt_tiles(LoadSettings(path="m.gguf", **changes), shape, isa)
    return found.tiles if found is not None else None


def placed(shape, path, device="cpu", **changes):
    settings = decided(LoadSettings(path=path, n_ctx=4096, **changes))
    return place(
        shape, settings, PlacementLimits(device=device), HOST, Ledger(lambda: HOST), PlacementHistory(None)
    )


@pytest.mark.parametrize(
    "kind",
    [
        GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q5_0, GgmlType.Q5_1, GgmlType.Q8_0, GgmlType.Q3_K, GgmlType.Q5_K,
        GgmlType.Q6_K, GgmlType.IQ3_XXS, GgmlType.IQ3_S, GgmlType.IQ4_XS, GgmlType.IQ4_NL, GgmlType.MXFP4,
    ],
)  # fmt: skip
def test_types_that_llama_cpp_multiplies_slowly(path, kind):
    found = placed(of_types(read_shape(path), kind), path)
    assert found.settings.tiles == (kind.name, ATTENTION)
    why = f"Tessera's CPU kernels: llama.cpp's take 1.1 to 4 times as long for weights in {kind.name}"
    assert any(why in reason for reason in sentences(found.reasons))


@pytest.mark.parametrize("kind", [GgmlType.Q4_K, GgmlType.Q2_K, GgmlType.F16, GgmlType.BF16])
def test_other_types_keep_llama_cpps_kernels(path, kind):
    found = placed(of_types(read_shape(path), kind), path)
    assert found.settings.tiles == (ATTENTION,)
    assert not any("prompts with Tessera's CPU kernels" in reason for reason in sentences(found.reasons))
    assert because("own_attention_kernels") in found.reasons


def test_weights_that_llama_cpp_rewrote_are_read_so_and_no_other_way(path):
    for kind in (GgmlType.Q4_0, GgmlType.IQ4_NL, GgmlType.MXFP4, GgmlType.Q4_K):
        shape = of_types(read_shape(path), kind)
        assert chosen(shape) == (kind.name,)
        assert chosen(shape, repack=False) is None
        assert chosen(shape, OLDER) == (kind.name,)
    few = placed(shape, path, n_threads=4)  # more do not copy the weights at all
    assert few.settings.repack
    assert few.settings.tiles == ("Q4_K", ATTENTION)


def test_attention_is_ours_where_it_is_fused_and_heads_fit_vectors(path):
    shape, settings = read_shape(path), LoadSettings(path="m.gguf")
    assert tile_attention(settings, shape, OLDER).tiles == (ATTENTION,)
    assert tile_attention(settings, shape, OLDER - {"f16c"}) is None
    assert tile_attention(replaced(settings, flash_attn="off"), shape, OLDER) is None
    assert tile_attention(replaced(settings, engine_args=EngineArgs(tiles=False)), shape, OLDER) is None
    layers = tuple(replaced(x, key_values=24 * 4, value_values=24 * 4) for x in shape.layers)
    odd = replaced(shape, heads=4, attention=96, layers=layers)
    assert tile_attention(settings, odd, OLDER) is None


def test_with_it_attention_is_never_plain(path):
    found = placed(read_shape(path), path, n_parallel=1)
    assert found.settings.flash_attn == "auto"
    older = placed(read_shape(path), path, n_parallel=1, engine_args=EngineArgs(tiles=False))
    assert older.settings.flash_attn == "off"


def test_they_need_avx2_and_matrix_units_do_it_themselves(path):
    shape = of_types(read_shape(path), GgmlType.Q8_0, GgmlType.Q5_1)
    assert chosen(shape) == ("Q5_1", "Q8_0")
    assert chosen(shape, OLDER) == ("Q5_1", "Q8_0")
    assert chosen(shape, OLDER - {"avx2"}) is None
    assert chosen(shape, ISA | {"amx_int8"}) is None


def test_a_few_weights_of_many_are_not_worth_it(path):
    shape = read_shape(path)
    assert chosen(of_types(shape, GgmlType.Q2_K, GgmlType.Q8_0, every=40)) is None
    assert chosen(of_types(shape, GgmlType.Q2_K, GgmlType.Q8_0, every=4)) == ("Q8_0",)


def test_experts_are_multiplied_too_and_their_columns_are_in_the_prediction(mixture):
    experts = tuple(
        replaced(t, ggml_type=GgmlType.Q8_0 if "_exps" in t.name else GgmlType.Q2_K) for t in mixture.tensors
    )
    shape = replaced(mixture, tensors=experts)
    assert chosen(shape) == ("Q8_0",)
    assert chosen(shape, OLDER - {"avx2"}) is None
    settings = LoadSettings(path="m.gguf", n_ubatch=512, tiles=("Q8_0",))
    width = max(tensor.shape[0] for tensor in experts if "_exps" in tensor.name)
    assert tile_bytes(shape, settings) > 512 * shape.experts_used * width
    others = replaced(settings, tiles=("Q4_K",))
    assert tile_bytes(shape, others) < tile_bytes(shape, settings)


def test_other_stacks_of_matrices_keep_llama_cpps_kernels(mixture):
    stacks = tuple(
        replaced(t, name=t.name.replace("ffn_up_exps", "attn_k_b"), ggml_type=GgmlType.Q8_0)
        if "ffn_up_exps" in t.name
        else replaced(t, ggml_type=GgmlType.Q2_K)
        for t in mixture.tensors
    )
    assert chosen(replaced(mixture, tensors=stacks)) is None


def test_where_they_were_not_built_nothing_changes(path, monkeypatch):
    monkeypatch.setattr(candidates, "tiles_library", lambda _folder: None)
    assert placed(of_types(read_shape(path), GgmlType.Q8_0), path).settings.tiles == ()


def test_what_attention_keeps_is_in_the_prediction(path):
    shape = of_types(read_shape(path), GgmlType.Q4_K)
    with_it, without = placed(shape, path), placed(shape, path, engine_args=EngineArgs(tiles=False))
    more = tile_bytes(shape, with_it.settings)
    assert 100_000 * with_it.settings.n_threads < more < 400_000 * with_it.settings.n_threads
    assert with_it.need.total_bytes - without.need.total_bytes == more


@pytest.mark.parametrize(("attention", "head"), [(1024, 128), (0, 96)])
def test_attention_needs_what_the_kernel_allocates_per_thread(path, attention, head):
    """Source: engine/kernels/strips.h, `strip_floats`."""
    shape = replaced(read_shape(path), heads=8, attention=attention, embedding=768)
    keys_and_values, cells, strip, strips = 2 * head, 64, 48, 4
    floats = cells * (keys_and_values + 2 * strip) + strips * strip * (keys_and_values + 3)
    settings = LoadSettings(path="m.gguf", n_threads=3, tiles=(ATTENTION,))
    assert tile_bytes(shape, settings) == 3 * 4 * floats


def test_a_gpus_settings_are_not_touched(path):
    found = placed(of_types(read_shape(path), GgmlType.Q8_0), path, device="igpu")
    assert found.settings.devices
    assert found.settings.tiles == ()


@pytest.mark.parametrize(("wish", "tiles"), [(True, TILE_KERNELS), (False, ())])
def test_what_the_user_asked_for_stays(path, wish, tiles):
    found = placed(of_types(read_shape(path), GgmlType.Q8_0), path, engine_args=EngineArgs(tiles=wish))
    assert found.settings.tiles == tiles
    assert not any("Tessera's CPU kernels" in reason for reason in sentences(found.reasons))


def test_what_they_keep_is_in_the_prediction(path):
    shape = of_types(read_shape(path), GgmlType.Q8_0)
    with_them = placed(shape, path)
    without = placed(shape, path, engine_args=EngineArgs(tiles=False))
    more = tile_bytes(shape, with_them.settings)
    assert more > with_them.settings.n_ubatch * shape.feed_forward
    products = replaced(with_them.settings, tiles=tuple(set(with_them.settings.tiles) - {ATTENTION}))
    one, two = (tile_bytes(shape, replaced(products, n_threads=threads)) for threads in (1, 2))
    assert two > one, "a panel for each thread"
    assert with_them.need.total_bytes - without.need.total_bytes == more
    assert tile_bytes(shape, without.settings) == 0


def test_after_a_crash_llama_cpps_own_kernels_are_tried(path):
    settings = placed(of_types(read_shape(path), GgmlType.Q8_0), path).settings
    tried, changes = [settings], []
    while (fallback := next_fallback(tried[-1], HOST, tuple(tried))) is not None:
        tried.append(fallback.settings)
        changes.append(sentence(fallback.change))
    assert "compute with llama.cpp's own kernels only" in changes
    assert tried[-1].tiles == ()


def test_bits_of_deterministic_answers_depend_on_them():
    plain = LoadSettings(path="m.gguf", n_ctx=512)
    assert "tiles" not in plan_of(plain)  # receipts of earlier versions stay valid
    assert plan_of(replaced(plain, tiles=("Q8_0", ATTENTION)))["tiles"] == ["Q8_0"]  # their attention is plain


def test_autotune_tries_them_for_more_types_and_for_none():
    base = knobs_of(LoadSettings(path="m.gguf", n_threads=2, tiles=("Q8_0",)))
    found = next(d for d in dimensions(base, HOST, 4096, 20, tiles=True) if d.name == "our own kernels")
    assert [level["tiles"] for level in found.levels] == [("Q8_0",), TILE_KERNELS, ()]
    assert found.words(base) == "Q8_0"
    assert found.words(replaced(base, tiles=())) == "none"
    assert base.apply(LoadSettings(path="m.gguf")).tiles == ("Q8_0",)
    assert "our own kernels" not in {d.name for d in dimensions(base, HOST, 4096, 20)}


def read_s(shape, types, depth=256, isa=ISA, **changes):
    """Forecast seconds per prompt token on this CPU with Tessera's kernels for `types`."""
    cpu = replaced(HOST.devices[0], isa=tuple(isa))
    settings = LoadSettings(path="m.gguf", n_ctx=4096, n_threads=2, tiles=tuple(types), **changes)
    return Forecast(shape, settings, ((cpu, "cpu", 1.0),), None).prompt_s(depth)


def test_a_forecast_counts_the_gain_of_each_type_with_vnni_only(path):
    """Q4_1, which llama.cpp reads row by row, gains most; kernels were not timed without VNNI."""
    shape, times = read_shape(path), {}
    for kind in (GgmlType.Q4_1, GgmlType.Q4_K, GgmlType.Q6_K, GgmlType.Q8_0):
        of_type = of_types(shape, kind)
        times[kind.name] = read_s(of_type, (), 0), read_s(of_type, (kind.name,), 0)
        assert read_s(of_type, (kind.name,), isa=OLDER) == read_s(of_type, (), isa=OLDER)
    gains = {name: theirs / ours for name, (theirs, ours) in times.items()}
    assert min(gains.values()) > 1.1
    assert gains["Q4_1"] > gains["Q4_K"] > gains["Q6_K"]
    deep = read_s(shape, (), 4000) - read_s(shape, (), 0)
    assert read_s(shape, (ATTENTION,), 4000) - read_s(shape, (ATTENTION,), 0) < deep / 1.5


def test_a_prompts_forecast_leaves_out_the_head_which_only_its_last_token_needs(path):
    shape = read_shape(path)
    assert any(tensor.name == "output.weight" for tensor in shape.tensors)
    without = replaced(shape, tensors=tuple(t for t in shape.tensors if t.name != "output.weight"))
    assert read_s(shape, (ATTENTION,)) == read_s(without, (ATTENTION,))
