"""Smoothing of huge channels: the same function with less 8-bit input error; tier max applies it."""

import asyncio

import msgspec
import numpy as np
import pytest

from engine.core.types import GenerationRequest, SamplingParams
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.child import run_task
from quantize.convert.checkpoint import f32_to_bf16
from quantize.files.gguf_file import read_gguf
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata
from quantize.files.imatrix import read_imatrix
from quantize.files.provenance import KEY, read_provenance
from quantize.ggml_types import GgmlType
from quantize.job.execute import quantize
from quantize.job.plan_file import read_plan
from quantize.job.request import QuantizeRequest
from quantize.job.source import QuantSource
from quantize.job.write_model import WriteRequest
from quantize.measure.run import measure_inputs
from quantize.measure.smoothing import Smoothed, SmoothRequest
from quantize.measure.verify import verify
from quantize.measurements import MeasureRequest, VerifyRequest
from quantize.native.source_weights import SourceWeights
from quantize.plan.llama_cpp_presets import uniform_types
from quantize.plan.speed import model_spec
from quantize.types import SizeTarget
from tests.support.models.lora_adapter import write_adapter
from tests.support.models.measured_model import HELD_OUT, ignore, never
from tests.support.models.small_folder import NARROW, changed_copy, short_text, small_file
from tests.support.runner_calls import answered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("kept", "three_types")]

HUGE = 64.0  # factor applied to the channel
CHANNEL = 37
LAYERS = 2
SEAMS = 3 * LAYERS  # before attention, before the feed-forward network, before its last product
MOST = 5 / 6  # share of scale points at which smoothing a huge channel is worth its larger weights


def huge(name, values):
    """Enlarge one channel of every norm's and gate's output, and reduce the weights that multiply it."""
    part = name.split(".")[-2]
    values = values.copy()
    if part in {"attn_norm", "ffn_norm"}:
        values[..., CHANNEL] *= HUGE
    if part in {"attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_down"}:
        values[:, CHANNEL] /= HUGE
    if part == "ffn_up":
        values[CHANNEL] *= HUGE
    return values


@pytest.fixture(scope="module")
def rough(tmp_path_factory):
    """Layers of the bundled model with huge channels: the same function."""
    path = tmp_path_factory.mktemp("rough") / "rough-f16.gguf"
    return changed_copy(small_file(path.with_name("plain.gguf"), LAYERS, NARROW), path, huge)


def request_of(source, folder, **changes):
    facts = {
        "source": source, "calibration": short_text(folder / "text.txt"), "cache_dir": folder / "cache",
        "threads": 2, "max_tokens": 2048, "probe_tokens": 512,
    }  # fmt: skip
    return MeasureRequest(**(facts | changes))


@pytest.fixture(scope="module")
def even(rough, tmp_path_factory):
    folder = tmp_path_factory.mktemp("even")
    task = SmoothRequest(measure=request_of(rough, folder), out=folder / "even-f16.gguf")
    return task, msgspec.convert(run_task("smooth", task, ignore, never), Smoothed)


def test_every_tensor_is_the_source_times_powers_of_two(rough, even):
    task, found = even
    before, after = SourceWeights(rough), SourceWeights(task.out)
    assert found.seams == SEAMS
    assert found.changed >= MOST * SEAMS
    assert found.kld < 1e-6
    changed, columns = set(), found.channel_scales().columns
    for name in before.names:
        old, new = before.rows(name), after.rows(name)
        if np.array_equal(old, new):
            continue
        changed.add(name.split(".")[-2])
        normal = np.abs(old) > 1e-3  # numbers with full precision
        powers = np.log2(np.divide(new, old, where=normal, out=np.ones_like(new)))
        by_column = np.frombuffer(columns.get(name, bytes(old.shape[-1])), np.int8)
        rows = powers - by_column
        assert np.array_equal(rows[normal], np.round(rows[normal]))
        assert all(np.ptp(row[ok]) == 0 for row, ok in zip(rows, normal, strict=True) if ok.any() and len(rows) > 1)
    assert changed == {"attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_down"}
    powers = np.frombuffer(columns["blk.0.attn_q.weight"], np.int8)
    assert powers.min() < powers.max()
    assert powers.argmax() == CHANNEL


def in_bfloat16(source, path):
    """A copy whose matrices are BF16, as most models are published."""
    weights = SourceWeights(source)
    infos = [weights.info(name) for name in weights.names]
    types = {i.name: GgmlType.BF16 if i.ggml_type is GgmlType.F16 else i.ggml_type for i in infos}
    slots = [TensorSlot(i.name, i.shape, types[i.name]) for i in infos]
    writer = GgufWriter(path, copied_metadata(read_gguf(source)), slots)
    for info in infos:
        values = weights.rows(info.name)
        writer.write(info.name, [f32_to_bf16(values) if types[info.name] is GgmlType.BF16 else values])
    writer.close()
    return path


def test_a_model_in_bfloat16_is_smoothed_too(rough, tmp_path):
    source = in_bfloat16(rough, tmp_path / "rough-bf16.gguf")
    task = SmoothRequest(measure=request_of(source, tmp_path), out=tmp_path / "even.gguf")
    found = msgspec.convert(run_task("smooth", task, ignore, never), Smoothed)
    assert found.seams == SEAMS
    assert found.changed >= MOST * SEAMS
    assert found.kld < 1e-6
    before, after = SourceWeights(source), SourceWeights(task.out)
    scales = found.channel_scales()
    assert [after.source_qtype(n) for n in after.names] == [before.source_qtype(n) for n in before.names]
    for name, exponents in scales.columns.items():
        rows = -np.frombuffer(scales.rows.get(name, bytes(before.shape(name)[1])), np.int8).astype(np.float32)
        factors = np.exp2(np.frombuffer(exponents, np.int8).astype(np.float32) + rows[:, None])
        assert np.array_equal(after.rows(name), before.rows(name) * factors), name


def test_the_same_model_gives_the_same_file_whatever_the_threads(even, tmp_path):
    task, found = even
    measure = msgspec.structs.replace(task.measure, threads=1, cache_dir=tmp_path / "cache")
    alone = SmoothRequest(measure=measure, out=tmp_path / "again.gguf")
    again = msgspec.convert(run_task("smooth", alone, ignore, never), Smoothed)
    assert again.scales == found.scales
    assert alone.out.read_bytes() == task.out.read_bytes()


def test_weights_on_a_grid_stay_as_they_are(rough, even, tmp_path):
    before = SourceWeights(rough)
    part = f"blk.{LAYERS - 1}.attn_q.weight"
    task = msgspec.structs.replace(even[0], out=tmp_path / "even.gguf", unchanged=(part,))
    found = msgspec.convert(run_task("smooth", task, ignore, never), Smoothed)
    # The inputs of that product are those of two others, and of no more scale points.
    assert found.changed == even[1].changed - 1
    after = SourceWeights(task.out)
    names = [f"blk.{LAYERS - 1}.{part}.weight" for part in ("attn_norm", "attn_q", "attn_k", "attn_v")]
    assert all(np.array_equal(after.rows(name), before.rows(name)) for name in names)
    # Each of the two is cached for itself.
    again = msgspec.structs.replace(even[0], out=tmp_path / "again.gguf")
    assert msgspec.convert(run_task("smooth", again, ignore, never), Smoothed).scales == even[1].scales


def test_how_it_is_done_is_found_out_once(even, tmp_path):
    task, found = even
    seen = []
    later = msgspec.structs.replace(task, out=tmp_path / "later.gguf")
    assert msgspec.convert(run_task("smooth", later, seen.append, never), Smoothed) == found
    assert not seen, "the text was evaluated again"
    assert later.out.read_bytes() == task.out.read_bytes()


async def continued(path, adapter):
    runner = await RunnerProcess.start("llama", str(path))
    try:
        await runner.load(LoadSettings(path=str(path), n_ctx=256, n_threads=1, lora=(adapter,)))
        sampling = SamplingParams(temperature=0)
        asked = {"sampling": sampling, "max_tokens": 8, "ignore_eos": True, "logprobs": 4}
        plain = await answered(runner, GenerationRequest(prompt="A kettle is", **asked))
        adapted = await answered(runner, GenerationRequest(prompt="A kettle is", lora=(("one", 1.0),), **asked))
        return plain.logprobs[0].top, adapted.logprobs[0].top
    finally:
        await runner.stop()


def test_an_adapter_of_the_source_does_the_same_to_the_smoothed_model(rough, even, tmp_path):
    shapes = {
        name: SourceWeights(rough).shape(f"blk.0.{name}.weight")[:0:-1] for name in ("attn_q", "ffn_up", "ffn_down")
    }
    adapter = write_adapter(tmp_path / "one.gguf", 0.2, parts=shapes, layers=LAYERS)
    (before, wanted), (after, found) = (asyncio.run(continued(path, adapter)) for path in (rough, even[0].out))
    assert before[0][2] != pytest.approx(wanted[0][2], abs=0.05), "it changes the answer"
    for old, new in ((before, after), (wanted, found)):
        assert [t[0] for t in new] == [t[0] for t in old]
        assert [t[2] for t in new] == pytest.approx([t[2] for t in old], abs=0.01)


def test_inputs_in_8_bits_spoil_less(rough, even, tmp_path):
    files = []
    for source in (even[0].out, rough):
        spec = model_spec(read_gguf(source))
        types = {name: qtype.name for name, qtype in uniform_types(spec, GgmlType.Q8_0).items()}
        task = WriteRequest(source=source, out=tmp_path / f"{source.stem}-q8.gguf", types=types, file_type=7)
        run_task("write", task, ignore, never)
        files.append(task.out)
    asked = VerifyRequest(reference=rough, files=tuple(files), text=HELD_OUT, max_tokens=2048, threads=2)
    smooth, plain = verify(asked, ignore, never)
    assert smooth.ratio.high < 0.5
    assert plain.kld_mean.value > 0


def test_the_importance_matrix_of_the_source_is_found_again(rough, even, tmp_path):
    measured = read_imatrix(measure_inputs(request_of(rough, tmp_path), ignore, never))
    copy = measure_inputs(request_of(even[0].out, tmp_path), ignore, never)

    class Here:
        def partial(self, kind):
            return tmp_path / kind

    found = read_imatrix(QuantSource(even[0].out, even[1]).source_imatrix(copy, Here()))
    assert found.keys() == measured.keys()
    for name, entry in measured.items():
        np.testing.assert_allclose(found[name].sums, entry.sums, rtol=2e-3, atol=1e-3 * entry.sums.mean())


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder that the jobs of this module share."""
    return tmp_path_factory.mktemp("cache")


def job(source, folder, **changes):
    facts = {
        "source": source, "out": folder / "out.gguf", "goal": SizeTarget(kind="bpw", bpw=5.0), "tier": "max",
        "calibration": short_text(folder / "text.txt"), "held_out": HELD_OUT, "cache_dir": folder / "cache",
        "threads": 2, "max_tokens": 2048, "probe_tokens": 512, "verify_tokens": 2048,
    }  # fmt: skip
    return quantize(QuantizeRequest(**(facts | changes)), ignore, never)


def test_tier_max_evens_out_and_says_so_and_its_next_plan_knows(rough, cache, tmp_path):
    report = job(rough, tmp_path, cache_dir=cache)
    assert (report.shipped, report.rounding) == ("ours", "gptq")
    assert report.smoothed >= MOST * SEAMS
    assert report.kld_ratio < 0.5
    assert read_provenance(str(read_gguf(tmp_path / "out.gguf").metadata[KEY])).smoothed
    assert {p.name for p in tmp_path.iterdir()} == {"out.gguf", "out.tessera.json", "text.txt"}
    again = job(rough, tmp_path, out=tmp_path / "plan.gguf", plan_only=True, cache_dir=cache)
    assert again.plan.types == report.plan.types
    assert again.plan.damage == report.plan.damage
    unknown = job(rough, tmp_path, out=tmp_path / "plan.gguf", plan_only=True, probe_tokens=768, cache_dir=cache)
    assert again.forecast.phases["measure"] < unknown.forecast.phases["measure"] / 2, "it is measured already"


def test_a_plan_that_travels_says_to_even_out_and_gives_the_same_bytes(rough, cache, tmp_path):
    report = job(rough, tmp_path, tier="balanced", cache_dir=cache, export_plan=tmp_path / "a.plan.json")
    assert report.smoothed >= MOST * SEAMS
    plan = read_plan(tmp_path / "a.plan.json")
    facts = {"tier": plan.tier, "goal": plan.goal, "rounding": plan.rounding, "max_tokens": plan.max_tokens}
    there = tmp_path / "there"
    there.mkdir()
    again = job(rough, there, plan=plan, threads=1, **facts)
    assert again.smoothed == report.smoothed
    assert (there / "out.gguf").read_bytes() == (tmp_path / "out.gguf").read_bytes()


def test_with_a_matrix_of_somebody_else_it_is_of_the_source_as_it_is(rough, tmp_path):
    given = measure_inputs(request_of(rough, tmp_path), ignore, never)
    assert job(rough, tmp_path, imatrix=given, verify=False).smoothed == 0
