"""Portable plans: the same bytes with any number of threads; forged, stale and foreign plans are refused."""

import msgspec
import pytest

from quantize.errors import InvalidOption
from quantize.files.measurement_folder import file_sha256
from quantize.files.provenance import Provenance
from quantize.gptq.codebooks import LATTICES
from quantize.job.execute import quantize
from quantize.job.plan_file import check_claim, read_plan, write_plan
from quantize.job.request import QuantizeRequest
from quantize.types import Interval, SizeTarget
from tests.support.models.measured_model import HELD_OUT, SOURCE, ignore, measured_types, never
from tests.support.models.small_folder import NARROW, short_text, small_file

# Codebooks of eight values and of four, with an even number of minus signs and with any. ggml's tables for them
# take 1 s of CPU time per process; those of all 2-bit types take 6 s.
POINTS = ("IQ2_XXS", "IQ3_S")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("kept")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def given(folder):
    """A published plan: the request that produced it, and the plan."""
    request = QuantizeRequest(
        source=small_file(folder / "source.gguf", 1, NARROW),
        out=folder / "made.gguf",
        goal=SizeTarget(kind="bpw", bpw=5.5),
        calibration=short_text(folder / "text.txt"),
        held_out=HELD_OUT,
        cache_dir=folder / "cache",
        threads=2,
        max_tokens=2048,
        probe_tokens=512,
        verify_tokens=1024,
        export_plan=folder / "made.plan.json",
    )
    with measured_types("Q4_K", "Q5_K", "Q8_0"):
        report = quantize(request, ignore, never)
    assert report.shipped == "ours"
    return request, read_plan(folder / "made.plan.json")


def follow(given, tmp_path, plan=None, **changes):
    """Follow a plan; earlier measurements are reused unless another cache is given."""
    request, own = given
    plan = plan or own
    facts = {
        "out": tmp_path / "again.gguf",
        "plan": plan,
        "goal": plan.goal,
        "tier": plan.tier,
        "rounding": plan.rounding,
        "max_tokens": plan.max_tokens,
        "export_plan": None,
    }
    return quantize(msgspec.structs.replace(request, **(facts | changes)), ignore, never)


def test_a_plan_makes_the_same_bytes_on_any_number_of_threads(given, tmp_path):
    """Here on one instead of two; the next test continues with four."""
    request, plan = given
    report = follow(given, tmp_path, threads=1, cache_dir=tmp_path / "cache")
    assert report.shipped == "ours"
    assert (tmp_path / "again.gguf").read_bytes() == request.out.read_bytes()
    assert file_sha256(tmp_path / "again.gguf") == plan.file_sha256
    assert any("byte for byte" in w for w in report.warnings)


def test_a_plan_of_points_and_signs_makes_the_same_bytes_on_any_number_of_threads(folder, tmp_path):
    """Below 2.6 bits per weight there are only codebook types, which round eight weights at a time."""
    request = QuantizeRequest(
        source=small_file(folder / "one.gguf", 1, NARROW),
        out=folder / "small.gguf",
        goal=SizeTarget(kind="bpw", bpw=2.5),
        calibration=short_text(folder / "text.txt"),
        held_out=HELD_OUT,
        cache_dir=folder / "cache",
        threads=2,
        max_tokens=2048,
        probe_tokens=512,
        verify_tokens=1024,
        export_plan=folder / "small.plan.json",
    )
    with measured_types(*POINTS, "Q4_K", "Q8_0"):
        report = quantize(request, ignore, never)
    plan = read_plan(folder / "small.plan.json")
    assert (report.shipped, report.rounding) == ("ours", "gptq")
    assert {LATTICES[t].even for t in plan.types.values() if t in LATTICES} == {True, False}
    assert {LATTICES[t].dims for t in plan.types.values() if t in LATTICES} == {4, 8}
    follow((request, plan), tmp_path, threads=4, cache_dir=tmp_path / "cache")
    assert (tmp_path / "again.gguf").read_bytes() == request.out.read_bytes()


def test_a_plan_is_small_and_survives_its_file(given, folder, tmp_path):
    _, plan = given
    assert (folder / "made.plan.json").stat().st_size < 20_000
    write_plan(tmp_path / "p.json", plan)
    assert read_plan(tmp_path / "p.json") == plan


def test_a_plan_of_another_source_or_text_is_refused(given, tmp_path):
    with pytest.raises(InvalidOption, match="another file"):
        follow(given, tmp_path, source=SOURCE)
    other = tmp_path / "other.txt"
    other.write_text(given[0].calibration.read_text()[:-100])
    with pytest.raises(InvalidOption, match="another text"):
        follow(given, tmp_path, calibration=other)
    foreign = msgspec.structs.replace(given[1], architecture="gemma3")
    with pytest.raises(InvalidOption, match="gemma3"):
        follow(given, tmp_path, foreign)
    assert not (tmp_path / "again.gguf").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipe": 999}, "recipe 999"),
        ({"version": 0}, "version 0"),
        ({"format": "recipe-book"}, "not a plan"),
        ({"types": {}}, "tensors are not"),
        ({"surprise": 1}, "damaged"),
        ({"kld": "low"}, "damaged"),
    ],
)
def test_a_stale_or_damaged_plan_is_refused(given, tmp_path, change, words):
    raw = msgspec.json.decode(msgspec.json.encode(given[1])) | change
    (tmp_path / "p.json").write_bytes(msgspec.json.encode(raw))
    with pytest.raises(InvalidOption, match=words):
        follow(given, tmp_path, read_plan(tmp_path / "p.json"))
    assert not (tmp_path / "again.gguf").exists()


@pytest.mark.parametrize("qtype", ["IQ9_K", "Q8_K", "Q4_K"])
def test_types_that_a_tensor_cannot_have_are_refused(given, tmp_path, qtype):
    name = next(n for n in given[1].types if n.endswith("norm.weight"))
    forged = msgspec.structs.replace(given[1], types=given[1].types | {name: qtype})
    with pytest.raises(InvalidOption, match=name):
        follow(given, tmp_path, forged)


def test_a_claim_that_does_not_hold_here_is_refused(given, tmp_path):
    boast = msgspec.structs.replace(given[1], kld=Interval(1e-6, 1e-6, 2e-6))
    with pytest.raises(InvalidOption, match="does not hold here"):
        follow(given, tmp_path, boast)
    assert not (tmp_path / "again.gguf").exists()
    check_claim(given[1], given[1].kld)


def test_bytes_that_differ_are_refused_and_told_where_they_are_allowed(given, tmp_path):
    other = msgspec.structs.replace(given[1], provenance=Provenance(tool="another"))
    with pytest.raises(InvalidOption, match="not byte for byte"):
        follow(given, tmp_path, other)
    assert list(tmp_path.iterdir()) == []
    report = follow(given, tmp_path, other, force=True)
    assert any("not byte for byte" in w for w in report.warnings)
    assert (tmp_path / "again.gguf").exists()


def test_a_plan_of_arithmetic_that_is_not_here_is_refused_before_anything_is_computed(given, tmp_path):
    foreign = msgspec.structs.replace(given[1], arithmetic="arm64-v9")
    with pytest.raises(InvalidOption, match="the arithmetic of arm64-v9"):
        follow(given, tmp_path, foreign)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "a.plan.json"
    for raw in (b'{"format": "\xff"}', b'{"\xfe": 1}', b"[" * 100_000):
        path.write_bytes(raw)
        with pytest.raises(InvalidOption, match="is not a plan"):
            read_plan(path)
