"""Mixtures larger than memory: which experts stay in memory, and the expected cost."""

import msgspec
import pytest
from msgspec.structs import replace

from devices.disk_speed import CHUNK_BYTES, SMALLEST_BYTES, disk_of, read_gbs
from devices.memory_ledger import Ledger
from engine.core.expert_stats import RANKS, ExpertUse, folder_of, use_store
from engine.library.hub.plan import _mark_best
from engine.library.hub.types import FitEstimate, Option, QuantVariant, RepoFile
from engine.message_catalog import sentences
from engine.placement.cpu_choices import expert_layers, forecast, whole_bytes
from engine.placement.estimate import ledger_amounts
from engine.placement.fallbacks import next_fallback
from engine.placement.fit_report import fit_report
from engine.placement.history import PlacementHistory
from engine.placement.shape import Layer, ModelShape
from engine.placement.steps import place
from engine.placement.types import NO_OVERRIDES
from engine.runner.engine_args import EngineArgs
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo
from quantize.ggml_types import BLOCK_SIZES, GgmlType
from tests.support.machines.machines import reports

GIB = 1 << 30
LAYERS, EXPERTS, USED, WIDTH, EMBEDDING = 48, 128, 8, 768, 2048


def mixture(kind=GgmlType.Q4_K, **changes) -> ModelShape:
    """Qwen3-30B-A3B's dimensions in one type."""
    found = []

    def tensor(name, *shape):
        block, width = BLOCK_SIZES[kind]
        count = 1
        for n in shape:
            count *= n
        found.append(TensorInfo(name, shape, kind, 0, count // block * width))

    tensor("token_embd.weight", EMBEDDING, 151_936)
    tensor("output.weight", EMBEDDING, 151_936)
    for layer in range(LAYERS):
        for name, rows in (("q", 4096), ("k", 512), ("v", 512)):
            tensor(f"blk.{layer}.attn_{name}.weight", EMBEDDING, rows)
        tensor(f"blk.{layer}.attn_output.weight", 4096, EMBEDDING)
        tensor(f"blk.{layer}.ffn_gate_inp.weight", EMBEDDING, EXPERTS)
        for name in ("gate", "up"):
            tensor(f"blk.{layer}.ffn_{name}_exps.weight", EMBEDDING, WIDTH, EXPERTS)
        tensor(f"blk.{layer}.ffn_down_exps.weight", WIDTH, EMBEDDING, EXPERTS)
    shape = ModelShape(
        architecture="qwen3moe", layers=tuple(Layer(key_values=512, value_values=512) for _ in range(LAYERS)),
        embedding=EMBEDDING, heads=32, attention=4096, feed_forward=6144, vocabulary=151_936,
        context_train=40_960, sliding_window=0, experts=EXPERTS, experts_used=USED,
        file_bytes=sum(t.nbytes for t in found), tensors=tuple(found),
    )  # fmt: skip
    return msgspec.structs.replace(shape, **changes)


def computer(free_gib, system="linux"):
    """A recorded notebook without a usable GPU, with this much free memory."""
    found = reports()["nv-hybrid-addw4"]
    memory = replace(found.memory, total_bytes=int((free_gib + 2) * GIB), available_bytes=int(free_gib * GIB))
    return replace(found, system=system, memory=memory, devices=found.devices[:1])


def placed(free_gib, shape=None, *, system="linux", memory=None, disk_gbs=None, **changes):
    found = computer(free_gib, system)
    book = Ledger(lambda: found)
    settings = LoadSettings(**{"path": "mixture.gguf", "n_ctx": 8192, "kv_cells": 32_768, **changes})
    history = memory or PlacementHistory(None)
    return place(shape or mixture(), settings, NO_OVERRIDES, found, book, history, disk_gbs=disk_gbs), book


def test_what_fits_is_not_streamed():
    plan, _ = placed(40)
    assert plan.fits
    assert plan.streaming is None
    assert plan.settings.expert_bytes == 0


def test_what_does_not_fit_is_streamed_within_what_is_free_and_says_what_that_costs():
    speeds = []
    for free in (8, 12, 16):
        plan, book = placed(free, disk_gbs=2.0)
        cost = plan.streaming
        assert plan.fits
        assert plan.settings.use_mmap
        assert not plan.settings.repack
        assert plan.settings.kv_cells == 0
        assert plan.need.part_bytes("experts") == plan.settings.expert_bytes
        assert plan.need.device_bytes("cpu") < free * GIB
        book.reserve("mixture", ledger_amounts(plan.need))
        assert cost.expert_bytes == whole_bytes(mixture())
        assert cost.cached_bytes <= plan.settings.expert_bytes
        assert 0 < cost.worst_hit_rate < cost.hit_rate < 1
        assert 0 < cost.worst_tok_s < cost.decode_tok_s
        assert plan.decode_tok_s == pytest.approx(cost.decode_tok_s, abs=0.1)
        said = " ".join(sentences(plan.reasons))
        for words in (
            "stay in memory",
            f"{cost.hit_rate:.0%}",
            "an estimate until it has been used",
            "2.00 GB/s (measured",
        ):
            assert words in said
        speeds.append(cost.decode_tok_s)
    assert speeds == sorted(speeds)


def test_a_longer_context_may_take_the_place_of_experts():
    found = computer(8)
    plan, book = placed(8)
    report = fit_report("mixture", mixture(), plan.settings, found, book)
    assert report.fits
    assert report.largest_context > 2 * plan.settings.n_ctx


@pytest.mark.parametrize(
    ("free_gib", "shape", "changes"),
    [
        (1.5, mixture(), {}),
        (8, mixture(experts=0, experts_used=0), {}),
        (8, mixture(), {"engine_args": EngineArgs(use_mmap=False), "use_mmap": False}),
        (8, mixture(), {"engine_args": EngineArgs(repack=True)}),
        (8, mixture(), {"system": "windows"}),
    ],
    ids=["not even a window", "dense", "not mapped", "rewritten", "another system"],
)
def test_what_cannot_be_streamed_is_refused_as_before(free_gib, shape, changes):
    plan, _ = placed(free_gib, shape, **changes)
    assert not plan.fits
    assert plan.streaming is None


def test_the_forecast_is_what_counts_and_disk_say():
    shape = mixture()
    whole = whole_bytes(shape)
    one = whole / LAYERS / EXPERTS
    even = ExpertUse(tokens=1000, ranks=[1.0] * RANKS)
    few = ExpertUse(tokens=1000, ranks=[10.0] * 8 + [1.0] * (RANKS - 8))
    for use, expected in ((even, 0.25), (few, (80 + 8) / (80 + 56))):
        cost = forecast(shape, whole // 4 + (64 << 20), use, 1.0, 0.05, measured=True)
        assert cost.seen_tokens == 1000
        assert cost.hit_rate == pytest.approx(expected, rel=0.06)
        seconds = 0.05 + LAYERS * 0.0003 + (1 - cost.hit_rate) * LAYERS * USED * one / 1e9
        assert cost.decode_tok_s == pytest.approx(1 / seconds, rel=0.02)
    unknown = forecast(shape, whole // 4 + (64 << 20), ExpertUse(tokens=10), 1.0, 0.05, measured=False)
    assert unknown.seen_tokens == 0
    assert unknown.hit_rate == pytest.approx(0.5, rel=0.05)
    assert unknown.worst_hit_rate == pytest.approx(0.25, rel=0.05)
    short = ExpertUse(tokens=1000, ranks=[1.0] * 8)
    assert forecast(shape, whole // 4, short, 1.0, 0.05, measured=True).seen_tokens == 0


def test_what_was_used_here_decides(tmp_path):
    cache = str(tmp_path / "prefixes")
    store = use_store(folder_of(cache), tmp_path / "mixture.gguf")
    store.put(ExpertUse(tokens=5000, ranks=[9.0] * 8 + [0.01] * (RANKS - 8)))
    known, _ = placed(8, path=str(tmp_path / "mixture.gguf"), cache_dir=cache)
    assert known.streaming.seen_tokens == 5000
    assert known.streaming.hit_rate > 0.9
    assert "measured here on 5000 tokens" in " ".join(sentences(known.reasons))


def test_heads_that_guess_ahead_are_not_streamed():
    first = [t for t in mixture().tensors if t.name.startswith("blk.0.")]
    beyond = [
        TensorInfo(t.name.replace("blk.0.", f"blk.{LAYERS}."), t.shape, t.ggml_type, t.offset, t.nbytes)
        for t in first
    ]
    shape = mixture(tensors=(*mixture().tensors, *beyond))
    assert expert_layers(shape).keys() == set(range(LAYERS))


def test_a_streamed_load_that_fails_is_never_read_into_memory():
    plan, _ = placed(8)
    tried = []
    fallback = next_fallback(plan.settings, computer(8), ())
    while fallback is not None:
        tried.append(fallback.settings)
        fallback = next_fallback(plan.settings, computer(8), tuple(tried))
    assert all(at.use_mmap for at in tried)


def option(label, size, *, streamed, fits=True):
    verdict = FitEstimate(fits=fits, needed_bytes=size, available_bytes=size, streamed=streamed)
    files = (RepoFile(name=f"{label}.gguf", size_bytes=size),)
    return Option(
        choice=QuantVariant(label=label, format="gguf", files=files), bits_per_weight=4.0, verdict=verdict
    )


def best_of(*options):
    return [o.choice.label for o in _mark_best(list(options)) if o.best]


def test_what_fits_whole_is_better_than_what_is_streamed_and_of_those_the_smallest():
    small = option("small", 10, streamed=False)
    streamed = [option("middle", 20, streamed=True), option("large", 30, streamed=True)]
    assert best_of(small, *streamed) == ["small"]
    assert best_of(*streamed) == ["middle"]


def test_a_disk_is_measured_and_kept(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"x" * SMALLEST_BYTES)
    small = tmp_path / "small"
    small.write_bytes(b"x" * CHUNK_BYTES)
    speed = read_gbs(path, 0.02)
    assert speed is None or speed > 0  # a file system may have no way to bypass its cache
    assert read_gbs(small, 0.02) is None
    assert read_gbs(tmp_path / "missing", 0.02) is None
    before = set(tmp_path.iterdir())
    read_gbs(tmp_path, 0.02)
    assert set(tmp_path.iterdir()) == before, "nothing is left behind"
    assert disk_of(path) == disk_of(tmp_path / "not" / "here") == str(tmp_path.stat().st_dev)
    history = PlacementHistory(tmp_path / "history.json")
    assert history.disk_gbs("1") is None
    history.record_disk("1", 2.5)
    assert PlacementHistory(tmp_path / "history.json").disk_gbs("1") == 2.5
    assert history.disk_gbs(None) is None


def test_hit_rates_lie_between_the_parts_that_were_counted():
    use = ExpertUse(tokens=1000, ranks=[3.0, 1.0] + [0.0] * (RANKS - 2))
    assert [use.hit_rate(part / RANKS) for part in (0, 0.5, 1, 1.5, 2, RANKS, 2 * RANKS)] == [
        0.0, 0.375, 0.75, 0.875, 1.0, 1.0, 1.0
    ]  # fmt: skip
    assert not msgspec.structs.replace(use, tokens=10).is_meaningful
    assert not ExpertUse(tokens=1000).is_meaningful
