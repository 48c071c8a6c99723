"""Each part of the method must keep its benefit on held-out text: allocation by sensitivity, then GPTQ."""

import pytest

from quantize.files.gguf_file import read_gguf
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata, file_bytes
from quantize.ggml_types import GgmlType
from quantize.job.round_plan import round_plan
from quantize.measure.verify import verify
from quantize.measurements import RoundRequest, VerifyRequest
from quantize.plan.llama_cpp_presets import stock_types
from quantize.plan.plan import PlanInput, make_plan
from quantize.plan.speed import model_spec
from quantize.types import EvidenceRef, SizeTarget
from tests.support.models.measured_model import HELD_OUT, ignore, never

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("kept")]


def write(path, types, rounding, measured, request):
    file = read_gguf(request.source)
    slots = [TensorSlot(t.name, t.shape, GgmlType[types[t.name]]) for t in file.tensors]
    changed = {t.name: types[t.name] for t in file.tensors if types[t.name] != t.ggml_type.name}
    imatrix = measured.imatrix if rounding == "stock" else None
    task = RoundRequest(measure=request, types=changed, rounding=rounding, imatrix=imatrix)
    packed = {p.name: p.blocks for p in round_plan(task, ignore, never)}
    writer = GgufWriter(path, copied_metadata(file), slots)
    for tensor in file.tensors:
        writer.write(tensor.name, [packed.get(tensor.name, file.tensor_bytes(tensor))])
    writer.close()
    return path


@pytest.fixture(scope="module")
def reports(request_for, measured, tmp_path_factory):
    """Held-out results of presets, and of Tessera's recipes of the smaller preset's size, for three layers.

    The whole model would gain more, because more layers differ (tests/bench/quant_frontier.py).
    """
    folder, source = tmp_path_factory.mktemp("recipes"), request_for.source
    file = read_gguf(source)
    spec, tensors = model_spec(file), file.tensors
    files = {}
    for mix in ("Q3_K_M", "Q4_K_M"):
        stock = {n: t.name for n, t in stock_types(spec, mix, has_imatrix=True).items()}
        files[mix, "stock"] = write(folder / f"{mix}-stock.gguf", stock, "stock", measured, request_for)
        size = files[mix, "stock"].stat().st_size
        for kind in ("rows", "gptq") if mix == "Q3_K_M" else ():
            question = PlanInput(
                model=spec,
                damage=measured.evidence.damage(kind),
                evidence=EvidenceRef(tier="balanced", has_imatrix=True),
                header_bytes=size - _data_bytes(tensors, stock),
            )
            types = make_plan(question, SizeTarget(kind="budget", limit_bytes=size)).types
            files[mix, kind] = write(folder / f"{mix}-{kind}.gguf", types, kind, measured, request_for)
            assert files[mix, kind].stat().st_size <= size
    found = verify(
        VerifyRequest(reference=source, files=(source, *files.values()), text=HELD_OUT, max_tokens=3072, threads=2),
        ignore,
        never,
    )
    return {"reference": found[0], **dict(zip(files, found[1:], strict=True))}


def _data_bytes(tensors, types):
    return file_bytes(0, [TensorSlot(t.name, t.shape, GgmlType[types[t.name]]) for t in tensors])


def test_the_reference_differs_from_itself_in_nothing(reports):
    same = reports["reference"]

    assert same.kld_mean.value < 1e-6
    assert same.top1_agreement_frac.value == 1
    assert same.perplexity.value == pytest.approx(same.reference_perplexity)


def test_alpha_pays(reports):
    """At most 0.8 times the preset's KL divergence (0.66 with all feed-forward channels); more means a defect."""
    assert reports["Q3_K_M", "rows"].kld_mean.value <= 0.8 * reports["Q3_K_M", "stock"].kld_mean.value


def test_alpha_with_gptq_pays(reports):
    """At most 0.4 times the preset's KL divergence (0.26 with all feed-forward channels); more means a defect."""
    assert reports["Q3_K_M", "gptq"].kld_mean.value <= 0.4 * reports["Q3_K_M", "stock"].kld_mean.value


def test_ours_at_the_bytes_of_a_small_mix_beats_the_larger_stock_mix(reports):
    assert reports["Q3_K_M", "gptq"].kld_mean.value < reports["Q4_K_M", "stock"].kld_mean.value


def test_figures_hang_together(reports):
    for report in reports.values():
        assert report.kld_mean.low <= report.kld_mean.value <= report.kld_mean.high
        assert report.kld_median <= report.kld_p99 <= report.kld_p999
        assert 0 <= report.top1_agreement_frac.value <= 1
        assert report.tokens == 6 * 255
