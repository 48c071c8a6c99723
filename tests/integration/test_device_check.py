"""Checks of devices other than the CPU: references from a real child process, compared in a real runner, cached."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from devices.types import Device, Machine, Memory, Runtime, SystemMemory
from engine.core.errors import DeviceCheckFailed
from engine.core.types import DeviceCheck
from engine.message_catalog import sentence
from engine.placement.device_checks import DeviceChecks, check_key
from engine.placement.fallbacks import sound_fallbacks
from engine.placement.placer import read_shape
from engine.runner.llama.native.device_check import Reference, compare_rows, is_wrong, read_reference
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.models.shapes import shallow, write_shape

GPU = Device(
    id="gpu0",
    kind="dgpu",
    vendor="AMD",
    name="A GPU",
    state="usable",
    memory=Memory(physical_bytes=8 << 30),
    driver="amdgpu",
    driver_version="1",
    runtimes=(
        Runtime("vulkan", "Vulkan0", 0, 8 << 30, 8 << 30, "usable"),
        Runtime("rocm", "ROCm0", 0, 8 << 30, 8 << 30, "usable"),
    ),
)
CPU = Device(id="cpu", kind="cpu", vendor="AMD", name="A CPU", state="usable", memory=Memory())
MACHINE = Machine(
    system="linux",
    kernel="6.18",
    arch="x86_64",
    environment="",
    product="",
    memory=SystemMemory(),
    devices=(CPU, GPU),
)


def offloaded(path, **changes):
    usual = {"n_ctx": 512, "n_parallel": 1, "n_threads": 1, "n_threads_batch": 1, "flash_attn": "on"}
    return LoadSettings(path=str(path), devices=("Vulkan0",), n_gpu_layers=99, **{**usual, **changes})


def loaded_with(path, reference):
    """The facts of a load on the CPU, compared with `reference`."""

    async def main():
        runner = await RunnerProcess.start("llama", str(path))
        try:
            return await runner.load(LoadSettings(path=str(path), n_ctx=512, n_threads=1, reference_path=reference))
        finally:
            await runner.stop()

    return asyncio.run(main())


@pytest.fixture(scope="module")
def reference(bundled_model, tmp_path_factory):
    """A reference computed by a real child process, as in the first load on a device."""
    checks = DeviceChecks(None, tmp_path_factory.mktemp("references"))
    settings = offloaded(bundled_model)
    return checks.to_compare(settings, read_shape(settings.path), MACHINE).reference_path


def test_a_reference_holds_likely_tokens_and_the_models_noise(reference):
    found = read_reference(Path(reference))
    assert found is not None
    logprobs = np.frombuffer(found.logprobs, "<f4").reshape(found.rows, found.width)
    mass = np.exp(logprobs.astype(np.float64)).sum(1)
    assert found.rows > 40
    assert (mass > 0.5).all()
    assert (mass < 1.0001).all()
    assert 0 < found.noise_kld_mean < 0.001


def test_a_sound_load_is_compared(bundled_model, reference):
    check = loaded_with(bundled_model, reference).device_check
    assert check is not None
    assert check.kld_mean < 0.001
    assert check.top_changed_frac == 0


def test_a_load_that_differs_is_refused_with_the_numbers(bundled_model, reference, tmp_path):
    path = Path(reference)
    found = read_reference(path)
    ids = np.frombuffer(found.token_ids, "<i4").reshape(found.rows, found.width)
    changed = msgspec.structs.replace(found, token_ids=np.roll(ids, 1, axis=1).tobytes())
    target = tmp_path / "changed.msgpack"
    target.write_bytes(msgspec.msgpack.encode(changed))
    with pytest.raises(DeviceCheckFailed, match="than the CPU") as caught:
        loaded_with(bundled_model, str(target))
    assert caught.value.numbers["kld_mean"] > 0.1
    assert caught.value.numbers["rows"] == found.rows


@pytest.mark.parametrize("damage", ["missing", "garbage", "cut", "other version", "text cut"])
def test_a_reference_that_is_of_no_use_costs_the_comparison_only(bundled_model, reference, tmp_path, damage):
    data = Path(reference).read_bytes()
    target = tmp_path / "x.msgpack"
    if damage == "garbage":
        target.write_bytes(b"\x00" * 500)
    elif damage == "cut":
        target.write_bytes(data[: len(data) // 2])
    elif damage == "other version":
        found = msgspec.msgpack.decode(data, type=Reference)
        target.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(found, version=99)))
    elif damage == "text cut":
        found = msgspec.msgpack.decode(data, type=Reference)
        first = msgspec.structs.replace(found.alone[0], logprobs=found.alone[0].logprobs[:8])
        target.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(found, alone=(first, *found.alone[1:]))))
    assert loaded_with(bundled_model, str(target)).device_check is None


def test_another_models_reference_is_not_compared(reference, tmp_path):
    other = write_shape(tmp_path / "other.gguf", shallow("llama"))
    assert loaded_with(other, reference).device_check is None


def rows_like(found, change):
    """Rows (n_vocab,) with the reference's log probabilities, changed."""
    ids = np.frombuffer(found.token_ids, "<i4").reshape(found.rows, found.width)
    logp = np.frombuffer(found.logprobs, "<f4").reshape(found.rows, found.width).astype(np.float32)
    rows = np.full((found.rows, int(ids.max()) + 1), -30, np.float32)
    np.put_along_axis(rows, ids, change(logp), axis=1)
    return rows


def test_verdicts_follow_the_numbers(reference):
    found = read_reference(Path(reference))
    rng = np.random.default_rng(1)
    same = compare_rows(found, rows_like(found, lambda logp: logp))
    assert same.kld_mean < 1e-6
    assert not is_wrong(same, found)
    tiny = compare_rows(found, rows_like(found, lambda logp: logp + rng.normal(0, 0.001, logp.shape)))
    assert not is_wrong(tiny, found)
    large = compare_rows(found, rows_like(found, lambda logp: logp + rng.normal(0, 0.5, logp.shape)))
    assert is_wrong(large, found)
    nan = msgspec.structs.replace(same, kld_mean=float("nan"))
    assert is_wrong(nan, found)
    noisy = msgspec.structs.replace(found, noise_kld_mean=1.0, noise_kld_max=10.0)
    assert not is_wrong(msgspec.structs.replace(large, top_changed_frac=0.0), noisy)


def test_what_a_verdict_depends_on(bundled_model, monkeypatch):
    settings, shape = offloaded(bundled_model), read_shape(str(bundled_model))
    replace = msgspec.structs.replace
    usual = check_key(settings, shape, MACHINE)
    driver = with_fields(MACHINE, devices=(CPU, with_fields(GPU, driver_version="2")))
    others = [
        check_key(replace(settings, flash_attn="off"), shape, MACHINE),
        check_key(replace(settings, type_k="q8_0"), shape, MACHINE),
        check_key(replace(settings, n_gpu_layers=2), shape, MACHINE),
        check_key(replace(settings, devices=("ROCm0",)), shape, MACHINE),
        check_key(replace(settings, use_mmap=not settings.use_mmap), shape, MACHINE),
        check_key(replace(settings, max_draft=0), shape, MACHINE),
        check_key(replace(settings, max_rollback=4), shape, MACHINE),
        check_key(replace(settings, mmproj_path="mmproj.gguf"), shape, MACHINE),
        check_key(settings, replace(shape, embedding=1), MACHINE),
        check_key(settings, shape, driver),
        check_key(settings, shape, with_fields(MACHINE, kernel="6.19")),
    ]
    monkeypatch.setenv("GGML_VK_DISABLE_F16", "1")
    others.append(check_key(settings, shape, MACHINE))
    assert len({usual, *others}) == len(others) + 1
    assert check_key(replace(settings, n_gpu_layers=0), shape, MACHINE) is None
    assert check_key(replace(settings, devices=()), shape, MACHINE) is None


def test_verdicts_outlive_the_process_and_are_asked_once(bundled_model, tmp_path):
    settings, shape = offloaded(bundled_model), read_shape(str(bundled_model))
    checks = DeviceChecks(tmp_path / "checks.json", tmp_path / "references")
    found = DeviceCheck(rows=52, kld_mean=3.0, kld_max=9.0, top_changed_frac=1.0, logprob_difference=9.0)
    assert checks.verdict(settings, shape, MACHINE) is None
    checks.record(settings, shape, MACHINE, found, "Vulkan0 computes something else")
    again = DeviceChecks(tmp_path / "checks.json", tmp_path / "references")
    verdict = again.verdict(settings, shape, MACHINE)
    assert verdict is not None
    assert verdict.wrong
    assert verdict.check == found
    assert "flash attention" in verdict.what
    assert again.to_compare(settings, shape, MACHINE) is settings  # known: no reference is computed
    (tmp_path / "checks.json").write_text("{")
    damaged = DeviceChecks(tmp_path / "checks.json", None)
    assert damaged.verdict(settings, shape, MACHINE) is None


def test_a_load_compares_short_texts_although_long_ones_were_compared_after_a_resume(bundled_model, tmp_path):
    settings, shape = offloaded(bundled_model), read_shape(str(bundled_model))
    checks = DeviceChecks(tmp_path / "checks.json", tmp_path / "references")
    checks.record_deep(settings, shape, MACHINE)
    deep_at = checks.verdict(settings, shape, MACHINE).deep_at
    assert deep_at > 0
    assert checks.to_compare(settings, shape, MACHINE).reference_path is not None
    found = DeviceCheck(rows=52, kld_mean=0.0, kld_max=0.0, top_changed_frac=0.0, logprob_difference=0.0)
    checks.record(settings, shape, MACHINE, found)
    assert checks.verdict(settings, shape, MACHINE).deep_at == deep_at
    assert checks.to_compare(settings, shape, MACHINE) is settings


def test_ways_around_a_wrong_device_in_their_order(bundled_model):
    settings = offloaded(bundled_model, type_k="q8_0", type_v="q8_0")
    changes = [sentence(fallback.change) for fallback in sound_fallbacks(settings, MACHINE)]
    assert changes == ["run on Vulkan0 without flash attention", "use rocm instead (ROCm0)", "run on the CPU"]
    plain = sound_fallbacks(settings, MACHINE)[0].settings
    assert (plain.flash_attn, plain.type_k, plain.type_v) == ("off", "q8_0", "f16")
