"""The next load gets the tuned or measured values, with the measurement among its reasons."""

import msgspec
import pytest

from engine.core.paths import Paths
from engine.message_catalog import sentence, sentences
from engine.placement.measurements import Point, Report, Spread, TunableSettings, TunedSetting
from engine.placement.placer import Placer, read_shape
from engine.placement.resources import open_resources
from engine.placement.results import Tuned, TunedStore, machine_key, shape_key
from engine.placement.types import PlacementLimits
from engine.runner.protocol import LoadSettings

pytestmark = pytest.mark.native

KNOBS = TunableSettings(
    n_threads=1, n_ubatch=96, n_batch=512, flash_attn="on", kv_type="q8_0", repack=False, max_draft=4
)


@pytest.fixture
def paths(tmp_path):
    return Paths(*(tmp_path / name for name in ("config", "models", "state", "cache", "logs")))


@pytest.fixture
def placer(paths):
    return Placer(open_resources(paths))


def keys(placer, path):
    return machine_key(placer.machine_now()), shape_key(read_shape(str(path)))


def tuned(where, which, **changes):
    values = {
        "machine_key": where,
        "shape_key": which,
        "prompt_tokens": 512,
        "knobs": KNOBS,
        "turn_s": 1.5,
        "default_turn_s": 1.8,
        "prefill_tok_s": 900.0,
        "decode_tok_s": 321.0,
        "choices": (TunedSetting(name="ubatch", value="128", turn_s=1.6, against="512", against_turn_s=1.9),),
        "measured_at": 1e9,
    }
    return Tuned(**{**values, **changes})


def test_a_load_gets_what_was_tuned_and_says_why(placer, bundled_model):
    where, which = keys(placer, bundled_model)
    settings = LoadSettings(path=str(bundled_model), n_ctx=1024, n_threads=2)
    before = placer.placement("m", settings, exact=False)
    assert before.basis == "prior"
    placer.tuned.put(tuned(where, which))
    placed = placer.placement("m", settings, exact=False)
    assert KNOBS.apply(placed.settings) == placed.settings
    assert placed.settings.n_ctx == 1024
    assert placed.decode_tok_s == 321.0
    assert placed.basis == "measured"
    told = " ".join(sentences(placed.reasons))
    assert "20% faster than the defaults" in told
    assert "ubatch 128: 1.60 s for a request against 1.90 s with 512" in told
    assert placer.choose("m", settings).settings.n_ubatch == 96
    assert placer.defaults("m", read_shape(str(bundled_model)), settings).settings.n_ubatch != 96


def test_defaults_that_do_not_work_are_kept_and_told():
    """They take no time at all, and JSON has no infinity."""
    made = tuned("here", "small", default_turn_s=None)
    kept = msgspec.json.decode(msgspec.json.encode(made), type=Tuned)
    assert kept == made
    assert "the defaults do not work" in sentence(kept.reasons()[0])


def test_what_the_user_asked_for_stays(placer, bundled_model):
    where, which = keys(placer, bundled_model)
    placer.tuned.put(tuned(where, which, knobs=msgspec.structs.replace(KNOBS, n_threads=9, flash_attn="off")))
    settings = LoadSettings(path=str(bundled_model), n_ctx=1024, n_threads=2)
    quiet = placer.placement("m", settings, PlacementLimits(mode="quiet"), exact=False)
    assert quiet.settings.n_threads == 1
    exact = placer.placement("m", settings, PlacementLimits(type_k="q4_0"), exact=False)
    assert (exact.settings.type_k, exact.settings.flash_attn) == ("q4_0", "on")
    assert exact.settings.repack is False


def test_a_device_that_is_gone_is_not_used(placer, bundled_model):
    where, which = keys(placer, bundled_model)
    placer.tuned.put(
        tuned(where, which, knobs=msgspec.structs.replace(KNOBS, devices=("Vulkan7",), n_gpu_layers=9))
    )
    settings = LoadSettings(path=str(bundled_model), n_ctx=1024, n_threads=2)
    placed = placer.placement("m", settings, exact=False)
    assert placed.settings.devices == ()
    assert any("Vulkan7" in reason for reason in sentences(placed.reasons))


def test_settings_that_do_not_fit_now_are_not_used(placer, bundled_model, monkeypatch):
    where, which = keys(placer, bundled_model)
    placer.tuned.put(tuned(where, which))
    monkeypatch.setattr("engine.placement.steps.overdraft", lambda *_: object())
    settings = LoadSettings(path=str(bundled_model), n_ctx=1024, n_threads=2)
    placed = placer.placement("m", settings, exact=False)
    assert placed.settings.n_ubatch != 96
    assert any("do not fit" in reason for reason in sentences(placed.reasons))


def test_another_machine_build_or_shape_is_tuned_anew(placer, bundled_model):
    where, which = keys(placer, bundled_model)
    placer.tuned.put(tuned("other", which))
    placer.tuned.put(tuned(where, "other"))
    settings = LoadSettings(path=str(bundled_model), n_ctx=1024, n_threads=2)
    assert placer.placement("m", settings, exact=False).basis == "prior"


def test_the_longest_prompt_that_the_context_holds_decides(paths):
    store = TunedStore(paths.state / "autotune.json")
    for length in (512, 4096, 16384):
        store.put(tuned("m", "s", prompt_tokens=length))
    again = TunedStore(paths.state / "autotune.json")
    assert [again.get("m", "s", n).prompt_tokens for n in (256, 512, 8192, 40960)] == [512, 512, 4096, 16384]
    store.put(tuned("m", "s", prompt_tokens=512, turn_s=9.0))
    assert again.get("m", "s", 600).turn_s == 9.0


def test_the_goal_that_was_tuned_for_last_decides(paths):
    store = TunedStore(paths.state / "autotune.json")
    for length in (512, 4096):
        store.put(tuned("m", "s", prompt_tokens=length, measured_at=1.0))
    energy = {"goal": "energy", "tokens_per_joule": 3.0, "default_tokens_per_joule": 2.0}
    store.put(tuned("m", "s", measured_at=2.0, **energy))
    assert store.get("m", "s", 8192).tokens_per_joule == 3.0
    store.put(tuned("m", "s", measured_at=3.0))
    assert [store.get("m", "s", n).prompt_tokens for n in (512, 8192)] == [512, 4096]
    assert store.get("m", "s", 512).goal == "speed"


def test_what_energy_was_tuned_to_is_told_in_tokens_per_joule():
    told = sentence(tuned("m", "s", goal="energy", tokens_per_joule=3.0, default_tokens_per_joule=2.0).reasons()[0])
    assert "3 tokens per joule, 50% more than the defaults" in told
    assert "generation 321.0 tok/s" in told
    same = sentence(tuned("m", "s", goal="energy", tokens_per_joule=2.0, default_tokens_per_joule=2.0).reasons()[0])
    assert "no setting clearly saved more" in same


@pytest.mark.parametrize("content", [b"", b"{", b'[{"machine_key": 3}]', b"\xff" * 40, b"[" * 9000])
def test_a_damaged_file_costs_only_what_was_in_it(paths, content):
    path = paths.state / "autotune.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    store = TunedStore(path)
    assert store.get("m", "s", 512) is None
    store.put(tuned("m", "s"))
    assert TunedStore(path).get("m", "s", 512) is not None


def test_a_speed_measured_on_a_stand_in_is_told(placer, bundled_model):
    where, which = keys(placer, bundled_model)
    s = Spread(median=42.0, low=41.0, high=43.0)
    report = Report(
        model="spark Q8_0", description="", size_bytes=1, n_params=1, backend="cpu", machine="", threads=2,
        type_k="f16", type_v="f16", load_s=1.0, rss_bytes=1,
        points=(Point(length=128, prefill_tok_s=s, decode_tok_s=s, ttft_s=s),),
        concurrency=(), drift=1.0, stand_in=True, started_at=1.0, shape_key=which, machine_key=where,
    )  # fmt: skip
    settings = LoadSettings(path=str(bundled_model), n_ctx=1024, n_threads=2)
    forecast = "; ".join(sentences(placer.placement("m", settings, exact=False).reasons))
    assert "off by less than 15%, one in ten by more than 60%; `tessera bench m` measures it" in forecast
    placer.results.add(report)
    placed = placer.placement("m", settings, exact=False)
    assert "forecast" not in "; ".join(sentences(placed.reasons))
    assert placed.decode_tok_s == 42.0
    assert placed.basis == "measured"
    assert "42.0 tok/s measured here on a simulated model, after 128 tokens" in sentences(placed.reasons)
    real = msgspec.structs.replace(report, stand_in=False, started_at=0.5)
    placer.results.add(real)
    settings = LoadSettings(path=str(bundled_model), n_ctx=1024, n_threads=2)
    assert "on this model" in sentence(placer.placement("m", settings, exact=False).reasons[-1])
