"""Planning before a download: headers read by ranges from the fake hub."""

import struct

import pytest

from engine.library.hub.plan import plan_repository, remembered
from engine.library.hub.types import FitEstimate, OwnBuild
from quantize.ggml_types import GgmlType
from tests.support.fakes.downloads import MB
from tests.support.fakes.fake_hub import FakeFile
from tests.support.models.fake_models import Zeros, remote_gguf, repository_of_twenty

GB = 10**9


def test_a_plan_reads_headers_only_and_a_second_look_reads_nothing(hub, client, catalogue, spark):
    spark.files["broken-Q2_K.gguf"] = FakeFile(b"GGUF" + b"\xff" * 1000)
    first = plan_repository(
        client, catalogue.paths, "org/Spark-GGUF", estimate=lambda p, d: estimate_size(20 * MB, p)
    )
    assert [o.choice.label for o in first.options] == ["Q2_K", "F16"]
    assert "version" in first.option("q2_k").problem
    assert first.best.choice.label == "F16"
    assert first.build_from == "F16"
    assert first.fetched_bytes < 600_000
    hub.requests.clear()
    second = plan_repository(client, catalogue.paths, "org/Spark-GGUF")
    assert second.option("F16").details.n_params == 8_392_960
    assert second.option("F16").bits_per_weight == pytest.approx(16.0, abs=0.1)
    assert [path for _, path, _ in hub.requests if "broken" not in path] == []


def estimate_size(limit, parts):
    size = sum(p.file_bytes for p in parts)
    return FitEstimate(fits=size < limit, needed_bytes=size, available_bytes=limit)


@pytest.mark.slow
def test_twenty_quantizations_cost_one_vocabulary(hub, client, catalogue):
    repo = hub.add("org/Big-GGUF", repository_of_twenty())
    plan = plan_repository(client, catalogue.paths, "org/Big-GGUF")
    assert len(plan.options) == 20
    assert [o.problem for o in plan.options] == [None] * 20
    assert {o.details.n_params for o in plan.options} == {8_174_862_336}
    assert [o.choice.label for o in plan.options][:2] == ["IQ1_S", "IQ2_XXS"]
    assert plan.option("Q4_K_M").bits_per_weight == pytest.approx(4.5, abs=0.01)
    vocabulary = len(repo.files["Big-8B-Q8_0.gguf"].data.head)
    assert 4 * MB < vocabulary < plan.fetched_bytes < vocabulary + 3 * MB
    hub.settle()
    again = plan_repository(client, catalogue.paths, "org/Big-GGUF")
    assert hub.requests == []
    assert again.fetched_bytes == 0
    assert [o.details for o in again.options] == [o.details for o in plan.options]


def test_a_sibling_with_another_vocabulary_is_read_in_full_and_right(hub, client, catalogue):
    odd = remote_gguf(GgmlType.Q8_0, 7, tokens=3000)
    raw = bytearray(odd.data.head)
    at = raw.index(b"tok000010")
    raw[at - 8 : at + 9] = struct.pack("<Q", 41) + b"x" * 41  # one longer token instead of one of nine letters
    odd.data = Zeros(bytes(raw), odd.data.size + 32)
    odd.__post_init__()
    hub.add("org/Odd-GGUF", {"odd-Q4_K_M.gguf": remote_gguf(GgmlType.Q4_K, 15, tokens=3000), "odd-Q8_0.gguf": odd})
    plan = plan_repository(client, catalogue.paths, "org/Odd-GGUF")
    assert [(o.choice.label, o.problem) for o in plan.options] == [("Q4_K_M", None), ("Q8_0", None)]
    assert plan.option("Q8_0").bits_per_weight == pytest.approx(8.5, abs=0.01)


def of_8b(kinds, tokens=3000):
    return {f"big-{name}.gguf": remote_gguf(*kind, tokens=tokens) for name, kind in kinds.items()}


KINDS = {"Q4_K_M": (GgmlType.Q4_K, 15), "Q8_0": (GgmlType.Q8_0, 7), "BF16": (GgmlType.BF16, 32)}


def judged(client, catalogue, limit):
    return plan_repository(client, catalogue.paths, "org/Big-GGUF", estimate=lambda p, d: estimate_size(limit, p))


def test_our_own_build_is_named_with_size_and_expected_damage(hub, client, catalogue):
    repo = hub.add("org/Big-GGUF", of_8b(KINDS))
    plan = judged(client, catalogue, 64 * GB)
    own, ready = plan.own, plan.best
    assert (ready.choice.label, plan.build_from, own.source, own.instead_of) == ("Q4_K_M", "BF16", "BF16", "Q4_K_M")
    assert 0.98 * ready.choice.size_bytes < own.file_bytes <= ready.choice.size_bytes
    assert 0 < own.kld < own.ready_kld, "at the same size by the same priors ours must be expected to lose less"
    assert "priors" in own.based_on
    assert hub.sent_bytes < len(repo.files["big-BF16.gguf"].data) / 1000


def test_where_nothing_ready_fits_our_own_is_as_large_as_does(hub, client, catalogue):
    hub.add("org/Big-GGUF", of_8b({"Q8_0": KINDS["Q8_0"], "BF16": KINDS["BF16"]}))
    plan = judged(client, catalogue, 5 * GB)
    assert plan.best is None
    assert plan.own.instead_of is None
    assert 4.9 * GB < plan.own.file_bytes <= 5 * GB
    assert judged(client, catalogue, GB // 2).own is None  # no recipe is that small


def test_an_exact_file_alone_is_quantized_to_what_loses_little(hub, client, catalogue):
    hub.add("org/Big-GGUF", of_8b({"BF16": KINDS["BF16"]}))
    plan = judged(client, catalogue, 64 * GB)
    assert plan.best.choice.label == "BF16"
    assert plan.own.bits_per_weight == pytest.approx(6.6, abs=0.1)


def test_without_an_exact_source_there_is_nothing_to_build(hub, client, catalogue):
    hub.add("org/Big-GGUF", of_8b({"Q4_K_M": KINDS["Q4_K_M"]}))
    plan = judged(client, catalogue, 64 * GB)
    assert (plan.build_from, plan.own) == (None, None)


def test_safetensors_are_a_source_though_their_header_is_not_read(hub, client, catalogue):
    files = of_8b({"Q4_K_M": KINDS["Q4_K_M"]})
    files |= {"model.safetensors": FakeFile(b"x"), "config.json": FakeFile(b"{}", lfs=False)}
    hub.add("org/Big-GGUF", files)
    plan = judged(client, catalogue, 64 * GB)
    assert (plan.build_from, plan.own.source) == ("safetensors", "safetensors")
    assert plan.own.kld < plan.own.ready_kld


def test_what_was_computed_for_one_limit_is_read_again_beside_those_of_others(tmp_path):
    made = []

    def build(limit):
        made.append(limit)
        return OwnBuild(based_on="priors", source="BF16", file_bytes=limit, bits_per_weight=4.5, kld=0.1)

    for limit in (1, 2, 1, 2):
        found = remembered(tmp_path / "cache" / "plans", ("hash", limit), lambda limit=limit: build(limit))
        assert found.file_bytes == limit
    assert made == [1, 2]
