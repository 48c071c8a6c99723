"""Plans stay within the bytes, are as good as possible, report fallbacks, and respect fixed types."""

import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.error_text import describe
from engine.core.errors import fact_of
from engine.core.paths import Paths
from engine.job_kinds.bench.qtype_speed import PriceStore
from engine.job_kinds.quantize.request import measured_speeds
from engine.message_catalog import sentence
from engine.placement.measurements import TypePrices
from engine.placement.resources import MachineState
from engine.placement.results import machine_key
from quantize.errors import BudgetTooSmall, InvalidOption
from quantize.files.gguf_file import read_gguf
from quantize.files.gguf_write import padded
from quantize.ggml_types import BLOCK_SIZES, USUAL, GgmlType, bits_per_weight
from quantize.job.forecast import types_to_measure
from quantize.job.report import exact_counts
from quantize.job.request import QuantizeRequest
from quantize.plan.plan import PlanInput, best_stock, make_plan, stock_plans
from quantize.plan.priors import prior_damage
from quantize.plan.speed import decode_time, model_spec, relative_bytes, slowness
from quantize.tensor_rules import allows_quantization, effective_type
from quantize.types import EvidenceRef, KvOption, ModelSpec, SizeTarget, TensorSpec, TypeOverride
from tests.support.examples import examples

SPARK = Path("assets/models/spark-f16.gguf")
ERROR = {
    "Q2_K": 0.09, "IQ3_XXS": 0.045, "IQ3_S": 0.028, "Q3_K": 0.03, "IQ4_XS": 0.0075, "IQ4_NL": 0.0074,
    "Q4_K": 0.0065, "Q4_0": 0.009, "Q5_0": 0.002, "Q5_1": 0.0019, "Q5_K": 0.0018, "Q6_K": 0.0005, "Q8_0": 3e-5,
}  # fmt: skip
# Relative to Q4_K's time per weight. Measured: log-archive.md, measuring ("what types cost here").
MEASURED_IQ3_S = 1.98
EVIDENCE = EvidenceRef(tier="max", has_imatrix=True)


def question(model: ModelSpec, **changes) -> PlanInput:
    rng = np.random.default_rng(3)
    damage = {}
    for tensor in model.tensors:
        if allows_quantization(tensor):
            alpha = float(np.exp(rng.normal(-4, 1)))
            damage[tensor.name] = {t: alpha * e for t, e in ERROR.items()}
    facts = {"model": model, "damage": damage, "evidence": EVIDENCE, "header_bytes": 200_000} | changes
    return PlanInput(**facts)


@pytest.fixture(scope="module")
def spark() -> ModelSpec:
    return model_spec(read_gguf(SPARK))


@pytest.mark.slow
@settings(max_examples=examples(30), deadline=None)
@given(limit=st.integers(3_500_000, 17_000_000))
def test_the_file_is_never_larger_than_the_budget(spark, limit):
    plan = make_plan(question(spark), SizeTarget(kind="budget", limit_bytes=limit))
    size = plan.header_bytes + sum(padded(t.num_bytes) for t in plan.tensors)
    assert size == plan.file_bytes <= limit
    assert plan.gap == 0


def test_a_plan_for_an_npu_has_only_types_that_npus_keep(spark):
    plan = make_plan(question(spark, device="npu"), SizeTarget(kind="budget", limit_bytes=8_000_000))
    kinds = {GgmlType[t.qtype] for t in plan.tensors}
    assert all(kind.traits.openvino == "native" for kind in kinds)
    assert any(not kind.traits.is_float for kind in kinds)


@pytest.mark.slow
@settings(max_examples=examples(30), deadline=None)
@given(limit=st.integers(3_500_000, 9_000_000), more=st.integers(0, 500_000))
def test_more_bytes_never_plan_more_damage(spark, limit, more):
    q = question(spark, speed_price=0.0)
    small = make_plan(q, SizeTarget(kind="budget", limit_bytes=limit))
    large = make_plan(q, SizeTarget(kind="budget", limit_bytes=limit + more))
    assert large.damage <= small.damage * (1 + 1e-12)


@pytest.mark.slow
def test_beats_every_stock_mix_of_its_size_on_its_own_evidence(spark):
    q = question(spark, speed_price=0.0)
    for stock in stock_plans(q):
        if stock.damage is None:
            continue
        plan = make_plan(q, SizeTarget(kind="budget", limit_bytes=stock.file_bytes))
        assert plan.damage <= stock.damage * (1 + 1e-12), stock.name
        assert plan.best_stock is not None


def test_too_small_a_budget_names_the_smallest_mix(spark):
    q = question(spark)
    with pytest.raises(BudgetTooSmall) as caught:
        make_plan(q, SizeTarget(kind="budget", limit_bytes=1_000_000))
    smallest = caught.value.smallest_bytes
    assert caught.value.limit_bytes == 1_000_000
    assert make_plan(q, SizeTarget(kind="budget", limit_bytes=smallest)).file_bytes == smallest
    with pytest.raises(BudgetTooSmall):
        make_plan(q, SizeTarget(kind="budget", limit_bytes=smallest - 32))


def test_too_small_a_budget_names_rows_that_no_type_can_store(spark):
    odd = [t.name for t in spark.tensors if allows_quantization(t)][:3]
    tensors = [msgspec.structs.replace(t, shape=(260, *t.shape[1:])) if t.name in odd else t for t in spark.tensors]
    q = question(msgspec.structs.replace(spark, tensors=tuple(tensors)))
    with pytest.raises(
        BudgetTooSmall, match="because 3 tensors stay in 16 bits: their rows of 260 values"
    ) as caught:
        make_plan(q, SizeTarget(kind="budget", limit_bytes=1_000_000))
    assert "260" in describe(caught.value)
    assert "260" in sentence(fact_of(caught.value))
    with pytest.raises(BudgetTooSmall) as caught:
        make_plan(question(spark), SizeTarget(kind="budget", limit_bytes=1_000_000))
    assert caught.value.rows is None


@pytest.mark.parametrize("memory", [0, 1_000, 3_000_000])
def test_too_little_memory_is_named_as_memory(memory, spark):
    goal = SizeTarget(kind="fit", limit_bytes=memory, fixed_bytes=2_000_000, n_ctx=4096, n_seq=1)
    with pytest.raises(BudgetTooSmall, match="bytes of memory") as caught:
        make_plan(question(spark), goal)
    assert caught.value.limit_bytes == memory
    for text in (describe(caught.value), sentence(fact_of(caught.value))):
        assert "4,096 tokens" in text
        assert "file" not in text
    enough = msgspec.structs.replace(goal, limit_bytes=caught.value.smallest_bytes)
    assert make_plan(question(spark), enough).file_bytes < caught.value.smallest_bytes


def test_bits_a_weight_are_kept(spark):
    plan = make_plan(question(spark), SizeTarget(kind="bpw", bpw=4.25))
    assert 4.2 < plan.bpw <= 4.25


def test_with_room_for_all_nothing_is_lost(spark):
    plan = make_plan(question(spark), SizeTarget(kind="budget", limit_bytes=100_000_000))
    assert plan.damage == 0
    assert plan.types == {t.name: t.qtype for t in spark.tensors}


def test_locks_are_obeyed(spark):
    locks = (TypeOverride("attn_v", "Q8_0"), TypeOverride(r"blk\.0\..*ffn", "Q5_K", at_least=True))
    plan = make_plan(question(spark, locks=locks), SizeTarget(kind="budget", limit_bytes=5_000_000))
    for tensor in plan.tensors:
        if "attn_v" in tensor.name:
            assert tensor.qtype == "Q8_0"
            assert tensor.locked
        if tensor.name.startswith("blk.0.ffn") and "norm" not in tensor.name:
            assert bits_per_weight(GgmlType[tensor.qtype]) >= 5.5
    assert plan.file_bytes <= 5_000_000


@pytest.mark.parametrize("lock", [TypeOverride("no_such_tensor", "Q8_0"), TypeOverride("(", "Q8_0")])
def test_a_lock_that_cannot_be_is_refused(spark, lock):
    with pytest.raises(InvalidOption, match="--lock"):
        make_plan(question(spark, locks=(lock,)), SizeTarget(kind="budget", limit_bytes=5_000_000))


def test_a_lock_widens_floats_and_refuses_to_restore_lost_bits(spark):
    name, goal = "blk.0.attn_v.weight", SizeTarget(kind="budget", limit_bytes=100_000_000)
    wide = make_plan(question(spark, locks=(TypeOverride(name, "F32"),)), goal)
    assert wide.types[name] == "F32"
    tensors = tuple(msgspec.structs.replace(t, qtype="Q4_K") if t.name == name else t for t in spark.tensors)
    quantized = msgspec.structs.replace(spark, tensors=tensors)
    with pytest.raises(InvalidOption, match="already Q4_K; F16 cannot restore it"):
        make_plan(question(quantized, locks=(TypeOverride(name, "F16"),)), goal)


def test_fallbacks_are_costed_as_they_will_happen(shape):
    model = model_spec(read_gguf(shape.write(embd=288, ffn=270, head_dim=72)))
    plan = make_plan(question(model), SizeTarget(kind="budget", limit_bytes=4_000_000))
    for tensor in plan.tensors:
        qtype = GgmlType[tensor.qtype]
        assert effective_type(qtype, tensor.shape[0]) is qtype
    downs = {t.qtype for t in plan.tensors if "ffn_down" in t.name}
    assert downs == {"F16"}  # rows of 270 are not a multiple of any block
    wanted = {t.wanted for t in plan.tensors if t.wanted}
    assert wanted
    assert wanted <= set(ERROR)


def test_without_an_imatrix_no_type_that_needs_one(spark):
    q = question(spark, evidence=EvidenceRef(tier="instant", has_imatrix=False))
    plan = make_plan(q, SizeTarget(kind="budget", limit_bytes=3_800_000))
    needing = [t.name for t in plan.tensors if t.qtype == "IQ3_XXS" and t.name != "token_embd.weight"]
    assert needing == []


def test_slow_types_are_priced(spark):
    tight = SizeTarget(kind="budget", limit_bytes=4_400_000)
    cpu = make_plan(question(spark, device="cpu"), tight)
    free = make_plan(question(spark, speed_price=0.0), tight)
    assert cpu.decode_cost < free.decode_cost
    assert "IQ3_S" in free.types.values()
    assert "IQ3_S" not in cpu.types.values()
    # A stored measurement overrides the table: here IQ3_S is the fastest type.
    measured = dict.fromkeys(ERROR, 1.0) | {"IQ3_S": 0.1}
    assert decode_time(GgmlType.IQ3_S, "cpu", measured) == 0.1
    assert "IQ3_S" in make_plan(question(spark, speeds=measured), tight).types.values()


def test_types_that_few_devices_compute_fast_are_planned_where_this_one_was_timed(spark):
    tight = SizeTarget(kind="budget", limit_bytes=5_200_000)
    # With almost no loss, it is not the loss that excludes these types.
    good = {t.name: dict.fromkeys(("MXFP4", "NVFP4"), 1e-09) for t in spark.tensors if allows_quantization(t)}
    damage = {name: row | good[name] for name, row in question(spark).damage.items()}
    even = {name: relative_bytes(GgmlType[name]) for name in (*ERROR, "MXFP4", "NVFP4")}

    def planned(**speeds):
        found = make_plan(question(spark, damage=damage, device="gpu", speeds=speeds), tight).types.values()
        return {"MXFP4", "NVFP4"} & set(found)

    assert planned() == planned(**{n: s for n, s in even.items() if n in ERROR}) == set()
    assert planned(**{**even, "NVFP4": 2.0}) == {"MXFP4"}
    assert planned(**{**even, "MXFP4": 2.0, "NVFP4": 2.0}) == set()


def test_experts_that_are_4_bit_floats_already_stay_as_they_are(spark):
    model = msgspec.structs.replace(
        spark,
        tensors=tuple(
            msgspec.structs.replace(t, qtype="MXFP4") if "ffn_up" in t.name else t for t in spark.tensors
        ),
    )
    plan = make_plan(question(model), SizeTarget(kind="budget", limit_bytes=6_500_000))
    assert {t.qtype for t in plan.tensors if "ffn_up" in t.name} == {"MXFP4"}
    assert all(t.damage == 0 for t in plan.tensors if "ffn_up" in t.name)


def test_the_smallest_types_are_measured_for_small_files_and_4_bit_floats_where_they_are_fast(spark):
    def wanted(goal, **speeds):
        where = dict.fromkeys(("source", "out", "calibration", "held_out", "cache_dir"), SPARK)
        request = QuantizeRequest(**where, goal=goal, device="gpu", speeds=speeds)
        return set(types_to_measure(request, spark)) - {t.name for t in USUAL}

    values = sum(t.num_values for t in spark.tensors)
    small = {"IQ2_XXS", "IQ2_XS", "IQ2_S"}
    assert wanted(SizeTarget(kind="bpw", bpw=3.0)) == small
    assert wanted(SizeTarget(kind="budget", limit_bytes=values * 3 // 8)) == small
    assert wanted(SizeTarget(kind="fit", limit_bytes=values * 5 // 8, fixed_bytes=values * 2 // 8)) == small
    for goal in (SizeTarget(kind="bpw", bpw=4.5), SizeTarget(kind="mix", mix="Q4_K_M")):
        assert wanted(goal) == set()
    assert wanted(SizeTarget(kind="bpw", bpw=4.5), MXFP4=0.9, NVFP4=1.5, Q4_K=1.0) == {"MXFP4"}


@pytest.mark.native
def test_prices_measured_here_decide_about_iq3(spark, tmp_path):
    """From this machine's stored costs to the plan: IQ3 if it is fast here, not if it is slow."""
    paths = Paths(*(tmp_path / name for name in ("config", "models", "state", "cache", "logs")))
    here = machine_key(MachineState().settled())
    store = PriceStore(paths.state / "type_prices.json")
    tight = SizeTarget(kind="budget", limit_bytes=4_400_000)

    def planned(**ns_per_weight):
        # Q4_K's bytes in its measured time, all other types by their bytes: only listed types are slow.
        even = {name: relative_bytes(GgmlType[name]) for name in ERROR if GgmlType[name] in BLOCK_SIZES}
        prices = TypePrices(
            machine_key=here,
            devices=(),
            threads=2,
            ns_per_weight={**even, "Q4_K": 1.0, **ns_per_weight},
            measured_at=1,
        )
        store.put(prices)
        return make_plan(question(spark, speeds=measured_speeds(paths, MachineState())), tight)

    assert "IQ3_S" in planned().types.values()
    assert "IQ3_S" not in planned(IQ3_S=MEASURED_IQ3_S).types.values()


def test_cache_and_weights_share_the_budget(spark):
    per_cell = 8 * 2 * 128
    kv = (
        KvOption("f16", "f16", 65536 * per_cell * 2, 0.0),
        KvOption("q8_0", "q8_0", 65536 * per_cell * 34 // 32, 0.0004),
        KvOption("q4_0", "q4_0", 65536 * per_cell * 18 // 32, 0.02),
    )
    size = SizeTarget(kind="budget", limit_bytes=6_000_000)
    assert make_plan(question(spark, kv=kv), size) == make_plan(question(spark), size), "no cache in a file"
    used = {}
    for limit in (90_000_000, 160_000_000, 276_000_000, 300_000_000):
        goal = SizeTarget(kind="fit", limit_bytes=limit, fixed_bytes=2_000_000, n_ctx=65536)
        plan = make_plan(question(spark, kv=kv), goal)
        assert plan.kv is not None
        weights = sum(padded(t.num_bytes) for t in plan.tensors)
        assert weights + plan.kv.num_bytes + 2_000_000 <= limit
        used[limit] = plan.kv.type_k
    assert used == {90_000_000: "q4_0", 160_000_000: "q8_0", 276_000_000: "q8_0", 300_000_000: "f16"}


def test_a_table_that_memory_holds_twice_counts_twice(spark):
    goal = SizeTarget(kind="fit", limit_bytes=7_000_000)

    def in_memory(doubled):
        plan = make_plan(question(spark, doubled_head_types=tuple(doubled)), goal)
        table = next(t for t in plan.tensors if t.name == "token_embd.weight")
        return sum(padded(t.num_bytes) for t in plan.tensors), padded(table.num_bytes)

    once, twice = in_memory(()), in_memory([*ERROR, "F16", "BF16", "F32"])
    assert sum(twice) <= goal.limit_bytes < sum(once)


def test_a_stock_mix_or_one_type_can_be_asked_for(spark):
    q = question(spark)
    stock = make_plan(q, SizeTarget(kind="mix", mix="q4_k_m"))
    assert stock.types["token_embd.weight"] == "Q6_K"
    listed = next(s for s in stock.stock if s.name == "Q4_K_M")
    assert (stock.file_bytes, stock.damage) == (listed.file_bytes, pytest.approx(listed.damage))
    assert stock.damage > make_plan(q, SizeTarget(kind="mix", mix="F16")).damage == 0
    assert set(make_plan(q, SizeTarget(kind="mix", mix="Q8_0")).types.values()) == {"F32", "Q8_0"}
    with pytest.raises(InvalidOption, match="Q4_K_XXL"):
        make_plan(q, SizeTarget(kind="mix", mix="Q4_K_XXL"))
    blind = question(spark, evidence=EvidenceRef(tier="instant", has_imatrix=False))
    with pytest.raises(InvalidOption, match="importance matrix"):
        make_plan(blind, SizeTarget(kind="mix", mix="IQ2_XS"))


def test_a_quantized_source_is_never_written_larger(spark):
    half = ModelSpec(
        architecture="llama",
        num_layers=8,
        num_heads=4,
        num_kv_heads=2,
        tensors=tuple(TensorSpec(t.name, t.shape, "Q8_0" if t.qtype == "F16" else t.qtype) for t in spark.tensors),
    )
    plan = make_plan(question(half), SizeTarget(kind="budget", limit_bytes=100_000_000))
    assert set(plan.types.values()) == {"F32", "Q8_0"}


def test_tensors_without_evidence_are_named(spark):
    q = question(spark)
    damage = {k: v for k, v in q.damage.items() if "blk.3" not in k}
    plan = make_plan(question(spark, damage=damage), SizeTarget(kind="budget", limit_bytes=5_000_000))
    assert any("7 tensors have no evidence" in note for note in plan.notes)
    blind = [t for t in plan.tensors if t.name == "blk.3.ffn_up.weight"]
    assert blind[0].damage > 0


def test_best_stock_heeds_size_and_imatrix(spark):
    plans = stock_plans(question(spark))
    assert best_stock(plans, 10, has_imatrix=True) is None
    smallest = min(plans, key=lambda plan: plan.file_bytes)
    assert best_stock(plans, smallest.file_bytes, has_imatrix=True) is not None
    chosen = best_stock(plans, 5_100_000, has_imatrix=False)
    assert chosen is not None
    assert not chosen.needs_imatrix
    assert chosen.file_bytes <= 5_100_000


def test_an_8b_shape_is_planned_quickly(shape):
    path = shape.write(
        arch="qwen3", layers=36, embd=4096, heads=32, kv_heads=8, head_dim=128, ffn=12288, vocab=151936, tied=False
    )
    model = model_spec(read_gguf(path))
    q = question(model)
    started = time.thread_time()
    plan = make_plan(q, SizeTarget(kind="budget", limit_bytes=4_900_000_000))
    # Usually 0.1 s; the guarantee is 2 s.
    assert time.thread_time() - started < 2
    assert plan.file_bytes <= 4_900_000_000


def test_before_measuring_keys_and_attention_outputs_get_more_bits_in_shallow_models_than_in_deep_ones(
    spark, shape
):
    deep = model_spec(read_gguf(shape.write(layers=30, embd=576, heads=9, kv_heads=3, ffn=1536, vocab=49152)))
    bits = {}
    for model in (spark, deep):
        evidence = EvidenceRef(tier="instant", has_imatrix=False)
        q = question(model, damage=prior_damage(model), evidence=evidence)
        preset = next(plan for plan in stock_plans(q) if plan.name == "Q4_K_M")
        plan = make_plan(q, SizeTarget(kind="budget", limit_bytes=preset.file_bytes))
        for role in ("attn_k", "attn_output"):
            types = [GgmlType[t.qtype] for t in plan.tensors if role in t.name]
            bits[role, model.num_layers] = float(np.mean([bits_per_weight(qtype) for qtype in types]))
    # The bundled model loses 6 % more if both get 5.6 bits.
    assert bits["attn_k", 8] > 5.9 > bits["attn_k", 30], bits
    assert bits["attn_output", 8] > 6 > bits["attn_output", 30], bits


def test_models_of_up_to_eight_layers_are_equally_shallow(shape):
    def keys_to_queries(layers):
        damage = prior_damage(model_spec(read_gguf(shape.write(layers=layers))))
        return damage["blk.0.attn_k.weight"]["Q4_K"] / damage["blk.0.attn_q.weight"]["Q4_K"]

    assert keys_to_queries(4) == pytest.approx(keys_to_queries(8))
    assert keys_to_queries(16) == pytest.approx(keys_to_queries(8) / 2)


TERNARY = ("TQ2_0", "Q2_0", "Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


@pytest.mark.parametrize(("device", "qtype"), [("cpu", "TQ2_0"), ("gpu", "Q2_K"), ("npu", "Q4_0")])
def test_weights_on_a_grid_take_the_smallest_type_that_holds_them(spark, device, qtype):
    layers = {t.name: TERNARY for t in spark.tensors if t.name.startswith("blk.") and allows_quantization(t)}
    plan = make_plan(
        question(spark, device=device, exact=layers), SizeTarget(kind="budget", limit_bytes=17_000_000)
    )
    assert {t.name: t.exact for t in plan.tensors if t.exact} == dict.fromkeys(layers, "TQ2_0")
    assert {t.qtype for t in plan.tensors if t.exact} == {qtype}
    assert exact_counts(plan) == {"three values": len(layers)}
    # The remaining loss is that of 8-bit inputs; the comparison is with a file of at most the same size.
    inputs = sum(question(spark).damage[name]["Q8_0"] for name in layers)
    assert plan.damage == pytest.approx(inputs)
    rival = next((s for s in plan.stock if s.name == plan.best_stock), None)
    assert rival is None or rival.file_bytes <= plan.file_bytes
    # A file smaller than the grid's is still possible, and a fixed type overrides the grid.
    if device != "npu":
        locks = (TypeOverride(r"attn_v", "Q6_K"), TypeOverride(r"ffn_down", "Q4_0"))
        plan = make_plan(question(spark, device=device, exact=layers, locks=locks), SizeTarget(kind="bpw", bpw=8.0))
        found = {t.name: (t.qtype, t.exact) for t in plan.tensors}
        assert found["blk.0.attn_v.weight"] == ("Q6_K", "")
        assert found["blk.0.ffn_down.weight"] == ("Q4_0", "TQ2_0")


def test_rows_of_added_tokens_cost_their_part_of_the_loss_and_may_buy_a_larger_type(spark):
    table = next(t for t in spark.tensors if t.name == "token_embd.weight")
    exact = {"token_embd.weight": ("Q4_0", "Q5_0", "Q8_0")}
    losses, picked = {}, {}
    for added in (0, 40, table.num_rows // 10):
        q = question(spark, exact=exact, added={"token_embd.weight": added} if added else {})
        lock = (TypeOverride("token_embd", "Q4_0", at_least=True),)
        small = make_plan(msgspec.structs.replace(q, locks=lock), SizeTarget(kind="budget", limit_bytes=5_500_000))
        large = make_plan(q, SizeTarget(kind="budget", limit_bytes=100_000_000))
        tight, wide = (next(t for t in p.tensors if t.name == table.name) for p in (small, large))
        losses[added], picked[added] = tight.damage, wide.qtype
        assert (tight.exact, tight.added_rows) == ("Q4_0", added)
        assert small.added_rows == added
    whole = question(spark).damage[table.name]
    assert losses[0] == pytest.approx(min(whole.values()))
    rest = losses[table.num_rows // 10] - losses[0]
    assert rest == pytest.approx((whole["Q4_0"] - losses[0]) / 10, rel=0.01)
    assert losses[0] < losses[40] < losses[table.num_rows // 10]
    assert picked[0] == "Q4_0"
    assert picked[table.num_rows // 10] == table.qtype


def test_a_smaller_file_than_the_grid_takes_smaller_types(spark):
    layers = {t.name: ("Q8_0",) for t in spark.tensors if t.name.startswith("blk.") and allows_quantization(t)}
    plan = make_plan(question(spark, exact=layers), SizeTarget(kind="budget", limit_bytes=6_000_000))
    assert plan.file_bytes <= 6_000_000
    assert any(t.qtype != "Q8_0" and not t.exact for t in plan.tensors if t.name in layers)


@pytest.mark.parametrize(("qtype", "slower"), [("Q4_K", 1.0), ("Q8_0", 1.0), ("IQ3_S", 3.0)])
def test_types_are_as_slow_as_their_time_exceeds_their_bytes(qtype, slower):
    found = GgmlType[qtype]
    times = {"Q4_K": 1.0, qtype: slower * relative_bytes(found)}
    assert slowness(found, "cpu", times) == pytest.approx(slower)
